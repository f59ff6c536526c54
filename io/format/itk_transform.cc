// SPDX-License-Identifier: Apache-2.0
#include "io/format/itk_transform.h"

#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "io/format/itk_parts.h"
#include "io/format/samples.h"

namespace intrawarp::io {
namespace {

constexpr absl::string_view kMagic = "#Insight Transform File V1.0";

// One "Transform: ..." of the file with the lines that follow it.
struct Block {
  absl::string_view type;
  absl::string_view parameters;
  absl::string_view fixed_parameters;
};

absl::StatusOr<std::vector<Block>> SplitBlocks(absl::string_view text) {
  if (!IsItkText(text)) {
    return FieldError(absl::StatusCode::kInvalidArgument, "file", "is not an Insight Transform File");
  }
  std::vector<Block> blocks;
  for (absl::string_view raw : absl::StrSplit(text, '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos) {
      return FieldError(absl::StatusCode::kInvalidArgument, "file", "has a line without a key");
    }
    const absl::string_view key = line.substr(0, colon), value = absl::StripAsciiWhitespace(line.substr(colon + 1));
    if (key == "Transform") {
      if (blocks.size() == kMaxItkParts) {
        return FieldError(absl::StatusCode::kUnimplemented, "Transform",
                          absl::StrCat("a list of more than ", kMaxItkParts));
      }
      blocks.push_back({value, {}, {}});
    } else if (blocks.empty()) {
      return FieldError(absl::StatusCode::kInvalidArgument, "Transform", "is missing");
    } else if (key == "Parameters") {
      blocks.back().parameters = value;
    } else if (key == "FixedParameters") {
      blocks.back().fixed_parameters = value;
    }
  }
  if (blocks.empty()) return FieldError(absl::StatusCode::kInvalidArgument, "Transform", "is missing");
  return blocks;
}

auto Words(absl::string_view text) { return absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipWhitespace()); }

// Exactly `count` finite numbers.
absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view text, int64_t count, absl::string_view field) {
  // Every number takes two characters or more, so the text bounds what is allocated.
  if (count > static_cast<int64_t>(text.size() / 2 + 1)) {
    return FieldError(absl::StatusCode::kInvalidArgument, field, absl::StrCat("has fewer than ", count, " numbers"));
  }
  std::vector<double> numbers;
  numbers.reserve(static_cast<size_t>(count));
  for (absl::string_view word : Words(text)) {
    const absl::StatusOr<double> value = ParseFinite(word);
    if (!value.ok())
      return FieldError(absl::StatusCode::kInvalidArgument, field,
                        absl::StrCat("a number is ", value.status().message()));
    if (static_cast<int64_t>(numbers.size()) == count) {
      return FieldError(absl::StatusCode::kInvalidArgument, field, absl::StrCat("must have ", count, " numbers"));
    }
    numbers.push_back(*value);
  }
  if (static_cast<int64_t>(numbers.size()) < count) {
    return FieldError(absl::StatusCode::kInvalidArgument, field,
                      absl::StrCat("has ", numbers.size(), " numbers, must have ", count));
  }
  return numbers;
}

ItkPart PartOf(const Block& block) {
  ItkPart part;
  part.type = std::string(block.type);
  part.parameters = [text = block.parameters](int64_t count) { return ParseNumbers(text, count, "Parameters"); };
  part.fixed_parameters = [text = block.fixed_parameters](int64_t count) {
    return ParseNumbers(text, count, "FixedParameters");
  };
  for (absl::string_view word : Words(block.fixed_parameters)) part.fixed_count += !word.empty();
  return part;
}

template <typename T>
void AppendNumbers(const std::vector<T>& values, std::string* text) {
  char word[32];
  for (T value : values) {
    text->push_back(' ');
    text->append(word, std::to_chars(word, word + sizeof(word), value).ptr);
  }
}

bool IsHdf5(absl::string_view path) {
  return absl::EndsWith(path, ".h5") || absl::EndsWith(path, ".hdf5") || absl::EndsWith(path, ".hdf");
}

absl::Status CheckVectors(const ItkTransform& transform) {
  if (transform.kind == ItkTransform::Kind::kAffine) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(transform.grid));
  if (static_cast<int64_t>(transform.vectors.size()) == 3 * transform.grid.voxels()) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "vectors", "their number does not match the size of the grid");
}

}  // namespace

bool IsItkText(absl::string_view text) { return absl::StartsWith(text, kMagic); }

bool HoldsItkText(const std::string& path) {
  bool whole = false;
  const absl::StatusOr<std::string> head = ReadHead(path, static_cast<int64_t>(kMagic.size()), &whole);
  return head.ok() && IsItkText(*head);
}

absl::StatusOr<ItkTransform> ParseItkTransform(absl::string_view text) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Block> blocks, SplitBlocks(text));
  std::vector<ItkPart> parts;
  for (const Block& block : blocks) parts.push_back(PartOf(block));
  return ComposeItkParts(std::move(parts));
}

std::string FormatItkTransform(const ItkTransform& transform) {
  std::string text = absl::StrCat(kMagic, "\n");
  int index = 0;
  for (const ItkPartOut& part : ItkPartsOf(transform)) {
    absl::StrAppend(&text, "#Transform ", index++, "\nTransform: ", part.type, "\n");
    if (absl::StartsWith(part.type, "CompositeTransform_")) continue;
    text += "Parameters:";
    AppendNumbers(part.parameters, &text);
    AppendNumbers(part.vectors, &text);
    text += "\nFixedParameters:";
    AppendNumbers(part.fixed_parameters, &text);
    text += "\n";
  }
  return text;
}

absl::StatusOr<ItkTransform> ReadItkTransform(const std::string& path, size_t max_bytes) {
  if (IsHdf5(path)) return ReadItkHdf5(path, max_bytes);
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, max_bytes));
  return ParseItkTransform(text);
}

absl::Status WriteItkTransform(const std::string& path, const ItkTransform& transform) {
  INTRAWARP_RETURN_IF_ERROR(CheckVectors(transform));
  if (IsHdf5(path)) return WriteItkHdf5(path, transform);
  return WriteSmallFile(path, FormatItkTransform(transform));
}

}  // namespace intrawarp::io
