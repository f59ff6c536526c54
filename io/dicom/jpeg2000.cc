// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/jpeg2000.h"

#include <openjpeg.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "engine/base/field_error.h"

namespace intrawarp::io::dicom {
namespace {

constexpr uint8_t kJp2Signature[] = {0, 0, 0, 12, 'j', 'P', ' ', ' '};

struct Memory {
  absl::Span<const uint8_t> bytes;
  size_t position = 0;
};

OPJ_SIZE_T Read(void* buffer, OPJ_SIZE_T count, void* user) {
  auto& memory = *static_cast<Memory*>(user);
  const size_t step = std::min<size_t>(count, memory.bytes.size() - memory.position);
  if (step == 0) return static_cast<OPJ_SIZE_T>(-1);
  std::memcpy(buffer, memory.bytes.data() + memory.position, step);
  memory.position += step;
  return step;
}
OPJ_OFF_T Skip(OPJ_OFF_T count, void* user) {
  auto& memory = *static_cast<Memory*>(user);
  if (count < 0) return -1;
  const size_t step = std::min<size_t>(static_cast<size_t>(count), memory.bytes.size() - memory.position);
  if (step == 0 && count > 0) return -1;
  memory.position += step;
  return static_cast<OPJ_OFF_T>(step);
}
OPJ_BOOL Seek(OPJ_OFF_T to, void* user) {
  auto& memory = *static_cast<Memory*>(user);
  if (to < 0 || static_cast<size_t>(to) > memory.bytes.size()) return OPJ_FALSE;
  memory.position = static_cast<size_t>(to);
  return OPJ_TRUE;
}

// OpenJPEG's handles are pointers to void*.
struct Freer {
  void operator()(opj_stream_t* stream) const { opj_stream_destroy(stream); }
  void operator()(opj_image_t* image) const { opj_image_destroy(image); }
};
struct CodecFreer {
  void operator()(opj_codec_t* codec) const { opj_destroy_codec(codec); }
};

void Ignore(const char*, void*) {}

absl::Status CheckHeader(const opj_image_t& image, int columns, int rows) {
  if (image.numcomps != 1) {
    return FieldError(absl::StatusCode::kInvalidArgument, "photometric", "the JPEG 2000 stream is not grey");
  }
  const opj_image_comp_t& c = image.comps[0];
  if (static_cast<int64_t>(c.w) != columns || static_cast<int64_t>(c.h) != rows || c.dx != 1 || c.dy != 1) {
    return FieldError(absl::StatusCode::kInvalidArgument, "size",
                      "the JPEG 2000 stream has another one than the header");
  }
  if (c.prec < 1 || c.prec > 31) {
    return FieldError(absl::StatusCode::kInvalidArgument, "bits", "of the JPEG 2000 stream are not 1 to 31");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Jpeg2000Image> DecodeJpeg2000(absl::Span<const uint8_t> stream_bytes, int columns, int rows) {
  const bool jp2 = stream_bytes.size() > sizeof(kJp2Signature) &&
                   std::memcmp(stream_bytes.data(), kJp2Signature, sizeof(kJp2Signature)) == 0;
  Memory memory{stream_bytes};
  const std::unique_ptr<opj_stream_t, Freer> stream(opj_stream_default_create(OPJ_TRUE));
  const std::unique_ptr<opj_codec_t, CodecFreer> codec(opj_create_decompress(jp2 ? OPJ_CODEC_JP2 : OPJ_CODEC_J2K));
  if (stream == nullptr || codec == nullptr) {
    return FieldError(absl::StatusCode::kResourceExhausted, "data", "no memory to decode");
  }
  opj_stream_set_user_data(stream.get(), &memory, nullptr);
  opj_stream_set_user_data_length(stream.get(), stream_bytes.size());
  opj_stream_set_read_function(stream.get(), Read);
  opj_stream_set_skip_function(stream.get(), Skip);
  opj_stream_set_seek_function(stream.get(), Seek);
  opj_set_info_handler(codec.get(), Ignore, nullptr);
  opj_set_warning_handler(codec.get(), Ignore, nullptr);
  opj_set_error_handler(codec.get(), Ignore, nullptr);
  opj_dparameters_t parameters;
  opj_set_default_decoder_parameters(&parameters);
  const absl::Status corrupt =
      FieldError(absl::StatusCode::kDataLoss, "data", "the JPEG 2000 stream is truncated or corrupt");
  if (!opj_setup_decoder(codec.get(), &parameters)) return corrupt;
  if (!opj_decoder_set_strict_mode(codec.get(), OPJ_TRUE)) return corrupt;
  opj_image_t* raw = nullptr;
  const bool has_header = opj_read_header(stream.get(), codec.get(), &raw);
  const std::unique_ptr<opj_image_t, Freer> image(raw);
  if (!has_header || image == nullptr) return corrupt;
  if (absl::Status status = CheckHeader(*image, columns, rows); !status.ok()) return status;
  if (!opj_decode(codec.get(), stream.get(), image.get())) return corrupt;
  const opj_image_comp_t& c = image->comps[0];
  if (c.data == nullptr || static_cast<int64_t>(c.w) != columns || static_cast<int64_t>(c.h) != rows) return corrupt;
  Jpeg2000Image result;
  result.precision = static_cast<int>(c.prec);
  result.is_signed = c.sgnd != 0;
  result.samples.assign(c.data, c.data + static_cast<size_t>(columns) * rows);
  return result;
}

}  // namespace intrawarp::io::dicom
