# SPDX-License-Identifier: Apache-2.0
# cmake -DFOLDER=DIR -DOUTPUT=FILE.cc -P EmbedAssets.cmake: the files of DIR as the source of PageAssets()
# (server/page/page_assets.h). Equal files give equal text.
file(GLOB files RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT files)
set(type_html "text/html\\; charset=utf-8")
set(type_css "text/css\\; charset=utf-8")
set(type_js "text/javascript\\; charset=utf-8")
set(type_svg "image/svg+xml")
set(arrays "")
set(rows "")
set(index 0)
foreach(file IN LISTS files)
  string(REGEX REPLACE ".*\\." "" suffix ${file})
  if(NOT DEFINED type_${suffix})
    message(FATAL_ERROR "${FOLDER}/${file}: no content type for .${suffix}")
  endif()
  string(REPLACE "\\;" ";" type "${type_${suffix}}")
  file(SHA256 ${FOLDER}/${file} digest)
  file(READ ${FOLDER}/${file} hex HEX)
  string(LENGTH "${hex}" size)
  math(EXPR size "${size} / 2")
  string(REGEX REPLACE "(................................................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kBytes${index}[] = {\n${bytes}0x00};\n")
  string(APPEND rows "    {\"${file}\", \"${type}\", \"\\\"${digest}\\\"\", Text(kBytes${index}, ${size})},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Made by cmake/EmbedAssets.cmake.
#include \"server/page/page_assets.h\"

namespace intrawarp::server {
namespace {

absl::string_view Text(const unsigned char* bytes, size_t size) { return {reinterpret_cast<const char*>(bytes), size}; }

${arrays}
}  // namespace

absl::Span<const PageAsset> PageAssets() {
  static const PageAsset assets[] = {
${rows}  };
  return assets;
}

}  // namespace intrawarp::server
")
