// SPDX-License-Identifier: Apache-2.0
// The header's layout, byte swapping and quaternions are nifticlib's. Its image functions are not used: they allocate
// by the header before they have looked at the file, and report truncation on stderr.
#include "io/format/nifti.h"

#include <nifti1_io.h>
#include <nifti2.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "io/format/axes.h"
#include "io/format/matrix_text.h"

namespace intrawarp::io {
namespace {

constexpr int64_t kHeaderBytes = 348;
constexpr int64_t kHeader2Bytes = 540;
constexpr int64_t kSingleFileOffset = 352;
constexpr int64_t kMaxOffset = int64_t{256} << 20;
constexpr int64_t kIoStep = int64_t{1} << 20;
constexpr int64_t kFirstAllocation = int64_t{64} << 20;
constexpr unsigned kGzBuffer = 1 << 18;
constexpr int32_t kExtensionHead = 8;  // esize and ecode
constexpr int32_t kMaxComment = 4096;
constexpr absl::string_view kVelocityName = "velocity";
constexpr absl::string_view kAffineTag = "# T(x) = A(exp(v)(x)), fixed to moving, LPS mm; A:\n";
constexpr const char* kAxisName[3] = {"x", "y", "z"};

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}

// ---- Bytes in -------------------------------------------------------------------------------------------------------

// A regular file read through zlib, which passes uncompressed files on as they are.
class Reader {
 public:
  static absl::StatusOr<Reader> Open(const std::string& path) {
    INTRAWARP_ASSIGN_OR_RETURN(const RegularFile regular, OpenRegularFile(path));
    gzFile file = gzdopen(regular.descriptor, "rb");
    if (file == nullptr) {
      close(regular.descriptor);
      return FieldError(absl::StatusCode::kResourceExhausted, "file", "no memory to read it");
    }
    gzbuffer(file, kGzBuffer);
    return Reader(file, regular.bytes);
  }
  Reader(Reader&& other) noexcept : file_(std::exchange(other.file_, nullptr)), file_bytes_(other.file_bytes_) {}
  Reader& operator=(Reader&&) = delete;
  ~Reader() {
    if (file_ != nullptr) gzclose_r(file_);
  }

  bool compressed() { return gzdirect(file_) == 0; }
  int64_t file_bytes() const { return file_bytes_; }

  // The number of bytes that came. It is below `size` only at the end of the file or for broken compressed data.
  int64_t Read(void* data, int64_t size) {
    int64_t done = 0;
    while (done < size) {
      const unsigned step = static_cast<unsigned>(std::min(size - done, kIoStep));
      const int got = gzread(file_, static_cast<uint8_t*>(data) + done, step);
      if (got <= 0) break;
      done += got;
    }
    return done;
  }

  bool Skip(int64_t size) {
    std::vector<uint8_t> scratch(std::min(size, kIoStep));
    while (size > 0) {
      const int64_t step = std::min(size, kIoStep);
      if (Read(scratch.data(), step) != step) return false;
      size -= step;
    }
    return true;
  }

  // Checks that nothing follows. For a compressed file this also compares the checksum and the length in its trailer.
  absl::Status ExpectEnd() {
    uint8_t extra;
    if (Read(&extra, 1) != 0) return Invalid("data", "there are more bytes than the header says");
    int error = Z_OK;
    gzerror(file_, &error);
    if (error == Z_OK || error == Z_STREAM_END) return absl::OkStatus();
    return FieldError(absl::StatusCode::kDataLoss, "data",
                      error == Z_BUF_ERROR ? "the compressed stream is cut short" : "the compressed stream is corrupt");
  }

  // The error after a short Read.
  absl::Status Broken(absl::string_view where, int64_t got, int64_t wanted) {
    int error = Z_OK;
    gzerror(file_, &error);
    if (error == Z_DATA_ERROR)
      return FieldError(absl::StatusCode::kDataLoss, where, "the compressed stream is corrupt");
    return FieldError(absl::StatusCode::kDataLoss, where, absl::StrCat("ends after ", got, " of ", wanted, " bytes"));
  }

 private:
  Reader(gzFile file, int64_t file_bytes) : file_(file), file_bytes_(file_bytes) {}
  gzFile file_;
  int64_t file_bytes_;
};

// `size` bytes, then the end of the file. Memory is taken as bytes come, unless the file's length vouches for them.
absl::StatusOr<std::vector<uint8_t>> ReadToEnd(Reader& reader, int64_t size) {
  std::vector<uint8_t> bytes;
  int64_t next = reader.compressed() ? std::min(size, std::max(kFirstAllocation, 8 * reader.file_bytes())) : size;
  int64_t done = 0;
  while (done < size) {
    bytes.resize(next);
    const int64_t got = reader.Read(bytes.data() + done, next - done);
    if (got != next - done) return reader.Broken("data", done + got, size);
    done = next;
    next = std::min(size, 2 * next);
  }
  INTRAWARP_RETURN_IF_ERROR(reader.ExpectEnd());
  return bytes;
}

// ---- Header in ------------------------------------------------------------------------------------------------------

// The header as NIfTI-2 has it; NIfTI-1's is widened.
struct Header {
  nifti_2_header raw{};
  double vox_offset = 0;  // raw's, before it became a whole number
  int64_t bytes = kHeaderBytes;
  bool swapped = false;
  bool pair = false;  // the voxels lie in a .img file

  // The voxels of a single file may begin here: after the header and four bytes that announce extensions.
  int64_t first_offset() const { return bytes + 4; }
};

absl::string_view IntentName(const nifti_2_header& h) {
  return absl::string_view(h.intent_name, strnlen(h.intent_name, sizeof(h.intent_name)));
}
bool IsVelocity(const nifti_2_header& h) {
  return h.intent_code == NIFTI_INTENT_VECTOR && IntentName(h) == kVelocityName;
}

nifti_2_header Widened(const nifti_1_header& h) {
  nifti_2_header wide{};
  wide.datatype = h.datatype;
  wide.bitpix = h.bitpix;
  std::copy(std::begin(h.dim), std::end(h.dim), wide.dim);
  std::copy(std::begin(h.pixdim), std::end(h.pixdim), wide.pixdim);
  wide.scl_slope = h.scl_slope;
  wide.scl_inter = h.scl_inter;
  wide.qform_code = h.qform_code;
  wide.sform_code = h.sform_code;
  wide.quatern_b = h.quatern_b, wide.quatern_c = h.quatern_c, wide.quatern_d = h.quatern_d;
  wide.qoffset_x = h.qoffset_x, wide.qoffset_y = h.qoffset_y, wide.qoffset_z = h.qoffset_z;
  std::copy(std::begin(h.srow_x), std::end(h.srow_x), wide.srow_x);
  std::copy(std::begin(h.srow_y), std::end(h.srow_y), wide.srow_y);
  std::copy(std::begin(h.srow_z), std::end(h.srow_z), wide.srow_z);
  wide.xyzt_units = h.xyzt_units;
  wide.intent_code = h.intent_code;
  std::copy(std::begin(h.intent_name), std::end(h.intent_name), wide.intent_name);
  return wide;
}

absl::StatusOr<Header> FromNifti1(nifti_1_header raw, Header header) {
  if (header.swapped) swap_nifti_header(&raw, 1);
  header.raw = Widened(raw);
  header.vox_offset = raw.vox_offset;
  header.pair = std::memcmp(raw.magic, "ni1", 4) == 0;
  if (header.pair || std::memcmp(raw.magic, "n+1", 4) == 0) return header;
  return Invalid("header", "the magic is not the one of NIfTI-1");
}

// Reverses the bytes of the numbers that are used.
void SwapNifti2(nifti_2_header* h) {
  for (int16_t* number : {&h->datatype, &h->bitpix}) nifti_swap_2bytes(1, number);
  for (int32_t* number : {&h->qform_code, &h->sform_code, &h->xyzt_units, &h->intent_code})
    nifti_swap_4bytes(1, number);
  nifti_swap_8bytes(std::size(h->dim), h->dim);
  nifti_swap_8bytes(std::size(h->pixdim), h->pixdim);
  nifti_swap_8bytes(1, &h->vox_offset);
  for (double* number : {&h->scl_slope, &h->scl_inter, &h->quatern_b, &h->quatern_c, &h->quatern_d, &h->qoffset_x,
                         &h->qoffset_y, &h->qoffset_z}) {
    nifti_swap_8bytes(1, number);
  }
  for (double* row : {h->srow_x, h->srow_y, h->srow_z}) nifti_swap_8bytes(4, row);
}

// `begin` holds the first kHeaderBytes of the header.
absl::StatusOr<Header> FromNifti2(const nifti_1_header& begin, Header header, Reader& reader) {
  header.bytes = kHeader2Bytes;
  std::memcpy(&header.raw, &begin, kHeaderBytes);
  const int64_t got = reader.Read(reinterpret_cast<uint8_t*>(&header.raw) + kHeaderBytes, kHeader2Bytes - kHeaderBytes);
  if (got != kHeader2Bytes - kHeaderBytes) return reader.Broken("header", kHeaderBytes + got, kHeader2Bytes);
  if (header.swapped) SwapNifti2(&header.raw);
  header.vox_offset = static_cast<double>(header.raw.vox_offset);
  static constexpr char kEnd[4] = {'\r', '\n', '\032', '\n'};
  const bool single = std::memcmp(header.raw.magic, "n+2", 4) == 0;
  header.pair = std::memcmp(header.raw.magic, "ni2", 4) == 0;
  // The end of the magic shows what a transfer as text has done to the file.
  if ((single || header.pair) && std::memcmp(header.raw.magic + 4, kEnd, 4) == 0) return header;
  return Invalid("header", "the magic is not the one of NIfTI-2");
}

absl::StatusOr<Header> ReadHeader(Reader& reader) {
  nifti_1_header begin;
  const int64_t got = reader.Read(&begin, kHeaderBytes);
  if (got != kHeaderBytes) return reader.Broken("header", got, kHeaderBytes);
  Header header;
  int32_t size = begin.sizeof_hdr;
  if (size != kHeaderBytes && size != kHeader2Bytes) {
    size = static_cast<int32_t>(__builtin_bswap32(static_cast<uint32_t>(size)));
    header.swapped = true;
  }
  if (size == kHeader2Bytes) return FromNifti2(begin, header, reader);
  if (size != kHeaderBytes) return Invalid("header", "not a NIfTI file");
  return FromNifti1(begin, header);
}

absl::StatusOr<PixelType> PixelTypeOf(const nifti_2_header& h) {
  static constexpr std::pair<int, PixelType> kTypes[] = {
      {DT_UINT8, PixelType::kUint8},     {DT_INT8, PixelType::kInt8},      {DT_UINT16, PixelType::kUint16},
      {DT_INT16, PixelType::kInt16},     {DT_UINT32, PixelType::kUint32},  {DT_INT32, PixelType::kInt32},
      {DT_FLOAT32, PixelType::kFloat32}, {DT_FLOAT64, PixelType::kFloat64}};
  for (const auto& [code, type] : kTypes) {
    if (code != h.datatype) continue;
    if (h.bitpix == 8 * BytesPerPixel(type)) return type;
    return Invalid("bitpix", absl::StrCat("is ", h.bitpix, ", must be ", 8 * BytesPerPixel(type), " for ",
                                          nifti_datatype_to_string(code)));
  }
  if (!nifti_is_valid_datatype(h.datatype) || h.datatype == DT_UNKNOWN) {
    return Invalid("datatype", absl::StrCat(h.datatype, " is none of NIfTI's"));
  }
  return FieldError(absl::StatusCode::kUnimplemented, "datatype",
                    absl::StrCat(nifti_datatype_to_string(h.datatype), " is not supported"));
}

// The seven lengths; a length beyond dim[0] is 1.
absl::StatusOr<std::vector<int>> DimsOf(const nifti_2_header& h) {
  if (h.dim[0] < 1 || h.dim[0] > 7) return Invalid("size", absl::StrCat("dim[0] is ", h.dim[0], ", must be 1 to 7"));
  std::vector<int> dims(7, 1);
  for (int i = 0; i < h.dim[0]; ++i) {
    if (h.dim[i + 1] < 1)
      return Invalid("size", absl::StrCat("dim[", i + 1, "] is ", h.dim[i + 1], ", must be above 0"));
    if (h.dim[i + 1] > std::numeric_limits<int>::max()) {
      return Invalid("size", absl::StrCat("dim[", i + 1, "] is too long"));
    }
    dims[i] = static_cast<int>(h.dim[i + 1]);
  }
  return dims;
}

absl::StatusOr<double> UnitOf(const nifti_2_header& h) {
  const int unit = h.xyzt_units & 7;
  switch (unit) {
    case NIFTI_UNITS_UNKNOWN:
    case NIFTI_UNITS_MM:
      return 1.0;
    case NIFTI_UNITS_METER:
      return 1e3;
    case NIFTI_UNITS_MICRON:
      return 1e-3;
    default:
      return Invalid("units", absl::StrCat(unit, " is not a unit of length"));
  }
}

// pixdim in mm. It must be above 0 on every axis with more than one voxel.
absl::StatusOr<Vec3d> PixdimOf(const nifti_2_header& h, Int3 size, double unit) {
  Vec3d spacing;
  for (int a = 0; a < 3; ++a) {
    const double pixdim = h.pixdim[a + 1];
    const bool given = std::isfinite(pixdim) && pixdim > 0;
    if (!given && size[a] > 1) {
      return Invalid("spacing", absl::StrCat(kAxisName[a], " is ", pixdim, ", must be finite and above 0"));
    }
    spacing[a] = given ? pixdim * unit : 1.0;
  }
  return spacing;
}

void SetColumn(Geometry& g, int c, Vec3d v) {
  for (int r = 0; r < 3; ++r) g.direction[r][c] = v[r];
}
absl::StatusOr<Geometry> FromSform(const nifti_2_header& h, const Geometry& g, double unit) {
  const double* rows[3] = {h.srow_x, h.srow_y, h.srow_z};
  Vec3d columns[3];
  for (int c = 0; c < 3; ++c) columns[c] = {-unit * rows[0][c], -unit * rows[1][c], unit * rows[2][c]};
  const Vec3d origin{-unit * rows[0][3], -unit * rows[1][3], unit * rows[2][3]};
  INTRAWARP_ASSIGN_OR_RETURN(Geometry out, GeometryFromAxes(g.size, columns, origin));
  if (g.size.z == 1 && columns[2] == Vec3d{0, 0, 0}) out.spacing.z = g.spacing.z;
  return out;
}

// NIfTI's method 2: a unit quaternion (a, b, c, d) with a >= 0, and qfac, the sign of the third axis.
absl::StatusOr<Geometry> FromQform(const nifti_2_header& h, Geometry g, double unit) {
  double b = h.quatern_b, c = h.quatern_c, d = h.quatern_d;
  const double rest = 1 - (b * b + c * c + d * d);
  if (!(rest > -1e-3)) return Invalid("direction", "the quaternion of the qform is not of unit length");
  const double a = rest > 0 ? std::sqrt(rest) : 0;
  const double scale = rest > 0 ? 1 : 1 / std::sqrt(1 - rest);
  b *= scale, c *= scale, d *= scale;
  const double qfac = h.pixdim[0] < 0 ? -1 : 1;
  SetColumn(g, 0, {-(a * a + b * b - c * c - d * d), -2 * (b * c + a * d), 2 * (b * d - a * c)});
  SetColumn(g, 1, {-2 * (b * c - a * d), -(a * a + c * c - b * b - d * d), 2 * (c * d + a * b)});
  SetColumn(g, 2, {-qfac * 2 * (b * d + a * c), -qfac * 2 * (c * d - a * b), qfac * (a * a + d * d - c * c - b * b)});
  g.origin = {-unit * h.qoffset_x, -unit * h.qoffset_y, unit * h.qoffset_z};
  return g;
}

absl::StatusOr<Geometry> GeometryOf(const nifti_2_header& h, const std::vector<int>& dims) {
  Geometry g;
  g.size = {dims[0], dims[1], dims[2]};
  INTRAWARP_ASSIGN_OR_RETURN(const double unit, UnitOf(h));
  INTRAWARP_ASSIGN_OR_RETURN(g.spacing, PixdimOf(h, g.size, unit));
  if (h.sform_code > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(g, FromSform(h, g, unit));
  } else if (h.qform_code > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(g, FromQform(h, g, unit));
  }
  // The change of sign makes -0.0, which prints differently from 0.
  for (int r = 0; r < 3; ++r) {
    g.origin[r] += 0.0;
    for (double& v : g.direction[r]) v += 0.0;
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(g));
  return g;
}

absl::Status RescaleOf(const nifti_2_header& h, double* slope, double* intercept) {
  *slope = 1;
  *intercept = 0;
  if (h.scl_slope == 0 || std::isnan(h.scl_slope)) return absl::OkStatus();
  if (!std::isfinite(h.scl_slope)) return Invalid("rescale_slope", "is not finite");
  if (!std::isfinite(h.scl_inter)) return Invalid("rescale_intercept", "is not finite");
  *slope = h.scl_slope;
  *intercept = h.scl_inter;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> OffsetOf(const Header& header) {
  const double offset = header.vox_offset;
  const int64_t least = header.pair ? 0 : header.first_offset();
  if (!(offset >= static_cast<double>(least) && offset <= kMaxOffset) || offset != std::floor(offset)) {
    return Invalid("vox_offset",
                   absl::StrCat("is ", offset, ", must be a whole number from ", least, " to ", kMaxOffset));
  }
  return static_cast<int64_t>(offset);
}

// ---- Voxels in ------------------------------------------------------------------------------------------------------

// The name of the voxels' file beside "*.hdr[.gz]", and the other way round; nothing for other names.
std::optional<std::string> Sibling(const std::string& path, absl::string_view from, absl::string_view to) {
  for (absl::string_view zip : {"", ".gz"}) {
    if (absl::EndsWith(path, absl::StrCat(from, zip))) {
      return absl::StrCat(absl::string_view(path).substr(0, path.size() - from.size() - zip.size()), to, zip);
    }
  }
  return std::nullopt;
}

// The bytes of the voxels from `offset` on, in native byte order.
absl::StatusOr<std::vector<uint8_t>> ReadVoxels(Reader& reader, int64_t already_read, int64_t offset, int64_t bytes) {
  if (!reader.compressed()) {
    if (reader.file_bytes() < offset + bytes) {
      return FieldError(
          absl::StatusCode::kDataLoss, "data",
          absl::StrCat("ends after ", std::max<int64_t>(0, reader.file_bytes() - offset), " of ", bytes, " bytes"));
    }
    if (reader.file_bytes() > offset + bytes) return Invalid("data", "there are more bytes than the header says");
  } else if (bytes / 1040 > reader.file_bytes()) {
    // Deflate packs at most 1032 bytes into one (zlib's technical details).
    return FieldError(absl::StatusCode::kDataLoss, "data", "the file is too short for the size that its header says");
  }
  if (!reader.Skip(offset - already_read)) return reader.Broken("data", 0, bytes);
  return ReadToEnd(reader, bytes);
}

struct OpenNifti {
  Reader reader;
  Header header;
  int64_t already_read;
  std::string voxels_path;  // the other file of a pair
};

absl::StatusOr<OpenNifti> OpenAndReadHeader(const std::string& path) {
  const std::optional<std::string> header_path = Sibling(path, ".img", ".hdr");
  INTRAWARP_ASSIGN_OR_RETURN(Reader reader, Reader::Open(header_path.value_or(path)));
  INTRAWARP_ASSIGN_OR_RETURN(const Header header, ReadHeader(reader));
  OpenNifti file{std::move(reader), header, header.bytes, ""};
  if (!header.pair) return file;
  const std::optional<std::string> voxels_path = Sibling(header_path.value_or(path), ".hdr", ".img");
  if (!voxels_path) return Invalid("header", "its magic says that it belongs to a .hdr and .img pair");
  file.voxels_path = *voxels_path;
  return file;
}

absl::StatusOr<std::vector<uint8_t>> ReadVoxelsOf(OpenNifti& file, int64_t count, PixelType type) {
  const int64_t bytes = count * BytesPerPixel(type);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t offset, OffsetOf(file.header));
  absl::StatusOr<std::vector<uint8_t>> voxels;
  if (file.header.pair) {
    INTRAWARP_ASSIGN_OR_RETURN(Reader reader, Reader::Open(file.voxels_path));
    voxels = ReadVoxels(reader, 0, offset, bytes);
  } else {
    voxels = ReadVoxels(file.reader, file.already_read, offset, bytes);
  }
  if (voxels.ok() && file.header.swapped && BytesPerPixel(type) > 1) {
    nifti_swap_Nbytes(count, static_cast<int>(BytesPerPixel(type)), voxels->data());
  }
  return voxels;
}

absl::Status CheckVectorIntent(const nifti_2_header& h) {
  if (absl::StartsWith(IntentName(h), "NREG")) {
    return FieldError(absl::StatusCode::kUnimplemented, "intent",
                      "a transformation of NiftyReg, not a displacement field");
  }
  if (IsVelocity(h)) return Invalid("intent", "a velocity, not a displacement field");
  if (h.intent_code == NIFTI_INTENT_VECTOR || h.intent_code == NIFTI_INTENT_DISPVECT) return absl::OkStatus();
  return Invalid("intent", absl::StrCat("is ", h.intent_code, ", must be 1007 (vector) or 1006 (displacement vector)"));
}

// The next extension before the voxels at `offset`: the text of a comment; empty for other extensions.
absl::StatusOr<std::string> ReadExtension(OpenNifti& file, int64_t offset) {
  int32_t head[2];
  if (offset - file.already_read < kExtensionHead || file.reader.Read(head, kExtensionHead) != kExtensionHead) {
    return Invalid("extension", "is cut short");
  }
  if (file.header.swapped) nifti_swap_4bytes(2, head);
  const auto [size, code] = head;
  if (size < 16 || size % 16 != 0 || size > offset - file.already_read) {
    return Invalid("extension", absl::StrCat("its size is ", size));
  }
  file.already_read += size;
  std::string text;
  if (code != NIFTI_ECODE_COMMENT || size > kMaxComment) {
    if (!file.reader.Skip(size - kExtensionHead)) {
      return FieldError(absl::StatusCode::kDataLoss, "extension", "is cut short");
    }
    return text;
  }
  text.resize(size - kExtensionHead);
  if (file.reader.Read(text.data(), size - kExtensionHead) != size - kExtensionHead) {
    return FieldError(absl::StatusCode::kDataLoss, "extension", "is cut short");
  }
  text.resize(strnlen(text.data(), text.size()));
  return text;
}

// The affine map of a velocity, from the comments before the voxels.
absl::StatusOr<AffineMap> ReadAffineComment(OpenNifti& file) {
  if (file.header.pair) {
    return FieldError(absl::StatusCode::kUnimplemented, "header", "a velocity in two files (.hdr, .img)");
  }
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t offset, OffsetOf(file.header));
  uint8_t extender[4];
  if (file.reader.Read(extender, sizeof(extender)) != sizeof(extender)) {
    return FieldError(absl::StatusCode::kDataLoss, "header", "is cut short");
  }
  file.already_read = file.header.first_offset();
  while (extender[0] != 0 && file.already_read < offset) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadExtension(file, offset));
    if (!absl::StartsWith(text, kAffineTag)) continue;
    absl::StatusOr<AffineMap> affine = ParseMatrix(text);
    if (!affine.ok()) return Invalid("extension", absl::StrCat(affine.status().message()));
    return affine;
  }
  return Invalid("extension", "the affine map of the velocity is missing");
}

// Planes of T to interleaved float, INVALID_ARGUMENT when one is not finite in float32.
template <typename T>
absl::Status Interleave(const std::vector<uint8_t>& planes, int64_t voxels, int components, const double scale[3],
                        double offset, std::vector<float>& out) {
  for (int c = 0; c < components; ++c) {
    for (int64_t i = 0; i < voxels; ++i) {
      T value;
      std::memcpy(&value, planes.data() + (c * voxels + i) * sizeof(T), sizeof(T));
      const float v = static_cast<float>(scale[c] * (static_cast<double>(value) + offset));
      if (!std::isfinite(v)) return Invalid("displacement", absl::StrCat("voxel ", i, " is not finite"));
      out[3 * i + c] = v;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckVelocityIntent(const nifti_2_header& h) {
  return IsVelocity(h) ? absl::OkStatus() : Invalid("intent", "must be 1007 (vector) with the name velocity");
}

// A field of vectors whose intent is `check`'s.
absl::StatusOr<HostField> ReadVectors(OpenNifti& file, int64_t max_bytes,
                                      absl::Status (*check)(const nifti_2_header& h)) {
  const nifti_2_header& h = file.header.raw;
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<int> dims, DimsOf(h));
  const int components = dims[4];
  const bool right_count = components == 3 || (components == 2 && dims[2] == 1);
  if (!right_count || dims[3] != 1 || dims[5] > 1 || dims[6] > 1) {
    return Invalid("size", "a displacement field must be 5-D, (x, y, z, 1, 3)");
  }
  INTRAWARP_RETURN_IF_ERROR(check(h));
  INTRAWARP_ASSIGN_OR_RETURN(const PixelType type, PixelTypeOf(h));
  if (type != PixelType::kFloat32 && type != PixelType::kFloat64) {
    return FieldError(absl::StatusCode::kUnimplemented, "datatype",
                      "of a displacement field must be float32 or float64");
  }
  HostField field;
  INTRAWARP_ASSIGN_OR_RETURN(field.geometry, GeometryOf(h, dims));
  INTRAWARP_ASSIGN_OR_RETURN(const double unit, UnitOf(h));
  if (unit != 1) return FieldError(absl::StatusCode::kUnimplemented, "units", "of a displacement field must be mm");
  double slope, intercept;
  INTRAWARP_RETURN_IF_ERROR(RescaleOf(h, &slope, &intercept));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t count, CountSamples(field.geometry, components, type, max_bytes));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<uint8_t> planes, ReadVoxelsOf(file, count, type));

  const double to_lps = h.intent_code == NIFTI_INTENT_DISPVECT ? -1 : 1;
  const double scale[3] = {to_lps * slope, to_lps * slope, slope};
  const double offset = intercept / slope;
  const int64_t voxels = field.geometry.voxels();
  field.displacement.resize(3 * voxels);
  INTRAWARP_RETURN_IF_ERROR(type == PixelType::kFloat32
                                ? Interleave<float>(planes, voxels, components, scale, offset, field.displacement)
                                : Interleave<double>(planes, voxels, components, scale, offset, field.displacement));
  return field;
}

// ---- Out ------------------------------------------------------------------------------------------------------------

absl::StatusOr<AtomicFile> CreateNifti(const std::string& path) {
  if (absl::EndsWith(path, ".nii.gz")) return AtomicFile::Create(path, AtomicFile::Coding::kGzip);
  if (absl::EndsWith(path, ".nii")) return AtomicFile::Create(path);
  return Invalid("path", "must end in .nii or .nii.gz");
}

int DatatypeOf(PixelType type) {
  switch (type) {
    case PixelType::kUint8:
      return DT_UINT8;
    case PixelType::kInt8:
      return DT_INT8;
    case PixelType::kUint16:
      return DT_UINT16;
    case PixelType::kInt16:
      return DT_INT16;
    case PixelType::kUint32:
      return DT_UINT32;
    case PixelType::kInt32:
      return DT_INT32;
    case PixelType::kFloat32:
      return DT_FLOAT32;
    case PixelType::kFloat64:
      return DT_FLOAT64;
  }
  return DT_UNKNOWN;
}

nifti_1_header MakeHeader(const Geometry& g, PixelType type) {
  nifti_1_header h{};
  h.sizeof_hdr = kHeaderBytes;
  h.regular = 'r';
  h.dim[0] = 3;
  for (int a = 0; a < 3; ++a) h.dim[a + 1] = static_cast<short>(g.size[a]);
  for (int a = 4; a < 8; ++a) h.dim[a] = 1;
  h.datatype = static_cast<short>(DatatypeOf(type));
  h.bitpix = static_cast<short>(8 * BytesPerPixel(type));
  h.vox_offset = kSingleFileOffset;
  h.scl_slope = 1;
  h.xyzt_units = NIFTI_UNITS_MM;
  std::memcpy(h.magic, "n+1", 4);

  const AffineMap lps = IndexToPhysical(g);
  mat44 ras{};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) ras.m[r][c] = static_cast<float>((r < 2 ? -lps.m[r][c] : lps.m[r][c]) + 0.0);
  ras.m[3][3] = 1;
  float dx, dy, dz, qfac;
  nifti_mat44_to_quatern(ras, &h.quatern_b, &h.quatern_c, &h.quatern_d, &h.qoffset_x, &h.qoffset_y, &h.qoffset_z, &dx,
                         &dy, &dz, &qfac);
  h.pixdim[0] = qfac;
  for (int a = 0; a < 3; ++a) h.pixdim[a + 1] = static_cast<float>(g.spacing[a]);
  for (int a = 4; a < 8; ++a) h.pixdim[a] = 1;
  std::copy(ras.m[0], ras.m[0] + 4, h.srow_x);
  std::copy(ras.m[1], ras.m[1] + 4, h.srow_y);
  std::copy(ras.m[2], ras.m[2] + 4, h.srow_z);
  h.qform_code = h.sform_code = NIFTI_XFORM_SCANNER_ANAT;
  return h;
}

absl::Status WriteHeader(AtomicFile& file, const nifti_1_header& header) {
  static constexpr char kNoExtension[4] = {};
  INTRAWARP_RETURN_IF_ERROR(file.Write(&header, kHeaderBytes));
  return file.Write(kNoExtension, sizeof(kNoExtension));
}

// The header and an extension with the affine map.
absl::Status WriteVelocityHeader(AtomicFile& file, nifti_1_header header, const AffineMap& affine) {
  static constexpr char kHasExtension[4] = {1};
  std::string text = absl::StrCat(kAffineTag, FormatMatrix(affine));
  text.resize((text.size() + kExtensionHead + 16) / 16 * 16 - kExtensionHead, '\0');
  const int32_t head[2] = {static_cast<int32_t>(text.size()) + kExtensionHead, NIFTI_ECODE_COMMENT};
  header.vox_offset = static_cast<float>(kSingleFileOffset + head[0]);
  INTRAWARP_RETURN_IF_ERROR(file.Write(&header, kHeaderBytes));
  INTRAWARP_RETURN_IF_ERROR(file.Write(kHasExtension, sizeof(kHasExtension)));
  INTRAWARP_RETURN_IF_ERROR(file.Write(head, sizeof(head)));
  return file.Write(text.data(), text.size());
}

nifti_1_header MakeVectorHeader(const Geometry& geometry) {
  nifti_1_header header = MakeHeader(geometry, PixelType::kFloat32);
  header.dim[0] = 5;
  header.dim[5] = 3;
  header.intent_code = NIFTI_INTENT_VECTOR;
  return header;
}

absl::Status WritePlane(AtomicFile& file, const float* displacement, int64_t voxels, int component) {
  std::vector<float> plane(std::min<int64_t>(voxels, kIoStep / sizeof(float)));
  for (int64_t done = 0; done < voxels;) {
    const int64_t step = std::min<int64_t>(voxels - done, plane.size());
    for (int64_t i = 0; i < step; ++i) plane[i] = displacement[3 * (done + i) + component];
    INTRAWARP_RETURN_IF_ERROR(file.Write(plane.data(), step * sizeof(float)));
    done += step;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HostVolume> ReadNifti(const std::string& path, int64_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(OpenNifti file, OpenAndReadHeader(path));
  const nifti_2_header& h = file.header.raw;
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<int> dims, DimsOf(h));
  if (dims[3] > 1) return Invalid("size", absl::StrCat(dims[3], " time points (4-D), must be one"));
  if (dims[4] > 1) return Invalid("size", absl::StrCat(dims[4], " components per voxel (5-D), must be one"));
  if (dims[5] > 1 || dims[6] > 1) return Invalid("size", "more than 5 dimensions");
  HostVolume volume;
  INTRAWARP_ASSIGN_OR_RETURN(volume.pixel_type, PixelTypeOf(h));
  INTRAWARP_ASSIGN_OR_RETURN(volume.geometry, GeometryOf(h, dims));
  volume.has_orientation = h.sform_code > 0 || h.qform_code > 0;
  INTRAWARP_RETURN_IF_ERROR(RescaleOf(h, &volume.rescale_slope, &volume.rescale_intercept));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t count, CountSamples(volume.geometry, 1, volume.pixel_type, max_bytes));
  INTRAWARP_ASSIGN_OR_RETURN(volume.pixels, ReadVoxelsOf(file, count, volume.pixel_type));
  return volume;
}

absl::StatusOr<HostField> ReadField(const std::string& path, int64_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(OpenNifti file, OpenAndReadHeader(path));
  return ReadVectors(file, max_bytes, CheckVectorIntent);
}

absl::StatusOr<bool> HoldsVelocity(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const OpenNifti file, OpenAndReadHeader(path));
  return IsVelocity(file.header.raw);
}

absl::StatusOr<HostVelocity> ReadVelocity(const std::string& path, int64_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(OpenNifti file, OpenAndReadHeader(path));
  INTRAWARP_RETURN_IF_ERROR(CheckVelocityIntent(file.header.raw));
  HostVelocity velocity;
  INTRAWARP_ASSIGN_OR_RETURN(velocity.affine, ReadAffineComment(file));
  INTRAWARP_ASSIGN_OR_RETURN(HostField field, ReadVectors(file, max_bytes, CheckVelocityIntent));
  velocity.geometry = field.geometry;
  velocity.velocity = std::move(field.displacement);
  return velocity;
}

absl::Status WriteNifti(const std::string& path, const Geometry& geometry, PixelType pixel_type, const void* pixels,
                        double rescale_slope, double rescale_intercept) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(geometry));
  nifti_1_header header = MakeHeader(geometry, pixel_type);
  header.scl_slope = static_cast<float>(rescale_slope);
  header.scl_inter = static_cast<float>(rescale_intercept);
  if (!std::isfinite(header.scl_slope) || header.scl_slope == 0)
    return Invalid("rescale_slope", "must be finite, not 0");
  if (!std::isfinite(header.scl_inter)) return Invalid("rescale_intercept", "is not finite");
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, CreateNifti(path));
  INTRAWARP_RETURN_IF_ERROR(WriteHeader(file, header));
  INTRAWARP_RETURN_IF_ERROR(file.Write(pixels, geometry.voxels() * BytesPerPixel(pixel_type)));
  return file.Commit();
}

absl::Status WriteNifti(const std::string& path, const HostVolume& volume) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(volume.geometry));
  if (static_cast<int64_t>(volume.pixels.size()) != volume.geometry.voxels() * BytesPerPixel(volume.pixel_type)) {
    return Invalid("pixels", "their number of bytes does not match the size");
  }
  return WriteNifti(path, volume.geometry, volume.pixel_type, volume.pixels.data(), volume.rescale_slope,
                    volume.rescale_intercept);
}

absl::Status WriteField(const std::string& path, const Geometry& geometry, const float* displacement) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(geometry));
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, CreateNifti(path));
  INTRAWARP_RETURN_IF_ERROR(WriteHeader(file, MakeVectorHeader(geometry)));
  for (int c = 0; c < 3; ++c) INTRAWARP_RETURN_IF_ERROR(WritePlane(file, displacement, geometry.voxels(), c));
  return file.Commit();
}

absl::Status WriteField(const std::string& path, const HostField& field) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(field.geometry));
  if (static_cast<int64_t>(field.displacement.size()) != 3 * field.geometry.voxels()) {
    return Invalid("displacement", "the number of values does not match the size");
  }
  return WriteField(path, field.geometry, field.displacement.data());
}

absl::Status WriteVelocity(const std::string& path, const AffineMap& affine, const Geometry& geometry,
                           const float* velocity) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(geometry));
  nifti_1_header header = MakeVectorHeader(geometry);
  kVelocityName.copy(header.intent_name, sizeof(header.intent_name) - 1);
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, CreateNifti(path));
  INTRAWARP_RETURN_IF_ERROR(WriteVelocityHeader(file, header, affine));
  for (int c = 0; c < 3; ++c) INTRAWARP_RETURN_IF_ERROR(WritePlane(file, velocity, geometry.voxels(), c));
  return file.Commit();
}

}  // namespace intrawarp::io
