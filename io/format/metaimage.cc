// SPDX-License-Identifier: Apache-2.0
// Written after the description of MetaIO, https://itk.org/Wiki/MetaIO/Documentation. MetaIO itself is not used: it
// allocates by the header before it has looked at the file, and opens whatever path a header names.
#include "io/format/metaimage.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "io/format/axes.h"
#include "io/format/samples.h"

namespace intrawarp::io {
namespace {

constexpr int64_t kMaxHeader = int64_t{1} << 16;
constexpr int64_t kMaxSkip = int64_t{256} << 20;
constexpr absl::string_view kDataFile = "ElementDataFile";

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}
absl::Status Unimplemented(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kUnimplemented, field, what);
}

// ---- Header in ------------------------------------------------------------------------------------------------------

struct Header {
  std::map<std::string, std::string, std::less<>> values;
  int64_t end = 0;  // the first byte after the header

  absl::string_view operator[](absl::string_view key) const {
    const auto it = values.find(key);
    return it == values.end() ? absl::string_view() : absl::string_view(it->second);
  }
  bool Has(absl::string_view key) const { return values.find(key) != values.end(); }
  // The first of these keys that is there, or the last.
  absl::string_view OneOf(std::initializer_list<absl::string_view> keys) const {
    const auto* it = std::find_if(keys.begin(), keys.end(), [&](absl::string_view key) { return Has(key); });
    return it == keys.end() ? *(keys.end() - 1) : *it;
  }
};

// ElementDataFile is the last key; what follows its line are the samples of a file that holds them itself.
absl::StatusOr<Header> ReadHeader(const std::string& path) {
  bool whole = false;
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadHead(path, kMaxHeader, &whole));
  Header header;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    const size_t length = (end == std::string::npos ? text.size() : end) - at;
    const absl::string_view line = absl::StripAsciiWhitespace(absl::string_view(text).substr(at, length));
    at = std::min(text.size(), at + length + 1);
    header.end = static_cast<int64_t>(at);
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos) return Invalid("header", "has a line without a key");
    const std::string key(absl::StripAsciiWhitespace(line.substr(0, equals)));
    const std::string value(absl::StripAsciiWhitespace(line.substr(equals + 1)));
    if (!header.values.emplace(key, value).second) return Invalid("header", "states a key twice");
    if (key == kDataFile) return header;
  }
  return whole ? Invalid("ElementDataFile", "is missing") : Invalid("header", "is longer than 64 KiB");
}

absl::StatusOr<bool> FlagOf(const Header& header, absl::string_view key, bool otherwise) {
  if (!header.Has(key)) return otherwise;
  const std::string value = absl::AsciiStrToLower(header[key]);
  if (value == "true" || value == "1" || value == "t") return true;
  if (value == "false" || value == "0" || value == "f") return false;
  return Invalid(key, "must be True or False");
}

// Exactly `count` finite numbers.
absl::StatusOr<std::vector<double>> NumbersOf(const Header& header, absl::string_view key, size_t count) {
  std::vector<double> numbers;
  for (const absl::string_view word : absl::StrSplit(header[key], absl::ByAnyChar(" \t"), absl::SkipWhitespace())) {
    const absl::StatusOr<double> value = ParseFinite(word);
    if (!value.ok()) return Invalid(key, absl::StrCat("a number is ", value.status().message()));
    numbers.push_back(*value);
  }
  if (numbers.size() == count) return numbers;
  return Invalid(key, absl::StrCat("has ", numbers.size(), " numbers, must have ", count));
}

absl::StatusOr<double> NumberOf(const Header& header, absl::string_view key, double otherwise) {
  if (!header.Has(key)) return otherwise;
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> numbers, NumbersOf(header, key, 1));
  return numbers[0];
}

absl::StatusOr<PixelType> TypeOf(const Header& header) {
  // MetaIO's MET_LONG has four bytes, whatever a compiler says.
  static constexpr std::pair<absl::string_view, PixelType> kTypes[] = {
      {"MET_UCHAR", PixelType::kUint8},   {"MET_CHAR", PixelType::kInt8},   {"MET_USHORT", PixelType::kUint16},
      {"MET_SHORT", PixelType::kInt16},   {"MET_UINT", PixelType::kUint32}, {"MET_INT", PixelType::kInt32},
      {"MET_ULONG", PixelType::kUint32},  {"MET_LONG", PixelType::kInt32},  {"MET_FLOAT", PixelType::kFloat32},
      {"MET_DOUBLE", PixelType::kFloat64}};
  if (!header.Has("ElementType")) return Invalid("ElementType", "is missing");
  // Images of several channels may call their type an array.
  const absl::string_view name = absl::StripSuffix(header["ElementType"], "_ARRAY");
  for (const auto& [spelled, type] : kTypes) {
    if (name == spelled) return type;
  }
  return Unimplemented("ElementType",
                       "must be one of MET_CHAR, SHORT, INT, LONG, their unsigned ones, FLOAT and DOUBLE");
}

absl::StatusOr<int> DimensionOf(const Header& header) {
  int dimension = 0;
  if (!absl::SimpleAtoi(header["NDims"], &dimension) || dimension < 1) {
    return Invalid("NDims", "must be a whole number above 0");
  }
  if (dimension != 2 && dimension != 3) return Unimplemented("NDims", "must be 2 or 3");
  return dimension;
}

absl::StatusOr<Int3> SizeOf(const Header& header, int dimension) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> numbers, NumbersOf(header, "DimSize", dimension));
  Int3 size{1, 1, 1};
  for (int a = 0; a < dimension; ++a) {
    if (!(numbers[a] >= 1 && numbers[a] <= kMaxAxis) || numbers[a] != std::floor(numbers[a])) {
      return Invalid("DimSize", absl::StrCat("must be whole numbers from 1 to ", kMaxAxis));
    }
    size[a] = static_cast<int>(numbers[a]);
  }
  return size;
}

absl::StatusOr<double> UnitOf(const Header& header) {
  const absl::string_view unit = header["DistanceUnits"];
  if (unit.empty() || unit == "mm" || unit == "?") return 1.0;
  if (unit == "cm") return 10.0;
  if (unit == "um") return 1e-3;
  return Invalid("DistanceUnits", "must be um, mm or cm");
}

absl::StatusOr<Geometry> GeometryOf(const Header& header, int dimension) {
  INTRAWARP_ASSIGN_OR_RETURN(const Int3 size, SizeOf(header, dimension));
  INTRAWARP_ASSIGN_OR_RETURN(const double unit, UnitOf(header));
  const absl::string_view matrix = header.OneOf({"TransformMatrix", "Rotation", "Orientation"});
  const absl::string_view offset = header.OneOf({"Offset", "Position", "Origin"});
  const absl::string_view spacing = header.OneOf({"ElementSpacing", "ElementSize"});
  std::vector<double> axes =
      dimension == 3 ? std::vector<double>{1, 0, 0, 0, 1, 0, 0, 0, 1} : std::vector<double>{1, 0, 0, 1};
  std::vector<double> steps(dimension, 1.0), position(dimension, 0.0);
  if (header.Has(matrix)) {
    INTRAWARP_ASSIGN_OR_RETURN(axes, NumbersOf(header, matrix, axes.size()));
  }
  if (header.Has(spacing)) {
    INTRAWARP_ASSIGN_OR_RETURN(steps, NumbersOf(header, spacing, steps.size()));
  }
  if (header.Has(offset)) {
    INTRAWARP_ASSIGN_OR_RETURN(position, NumbersOf(header, offset, position.size()));
  }

  // The matrix states one axis after the other.
  Vec3d columns[3], origin;
  for (int a = 0; a < dimension; ++a) {
    if (!(steps[a] > 0)) return Invalid(spacing, "must be above 0");
    for (int r = 0; r < dimension; ++r) columns[a][r] = unit * steps[a] * axes[a * dimension + r];
    origin[a] = unit * position[a];
  }
  return GeometryFromAxes(size, columns, origin);
}

struct Image {
  Geometry geometry;
  PixelType type = PixelType::kUint8;
  int64_t channels = 1;
  std::vector<uint8_t> samples;  // native byte order, channels interleaved
};

// ---- Samples in -----------------------------------------------------------------------------------------------------

absl::StatusOr<SampleSource> SourceOf(const std::string& path, const Header& header) {
  INTRAWARP_ASSIGN_OR_RETURN(const bool binary, FlagOf(header, "BinaryData", true));
  if (!binary) return Unimplemented("BinaryData", "samples as text are not supported");
  INTRAWARP_ASSIGN_OR_RETURN(const bool compressed, FlagOf(header, "CompressedData", false));
  INTRAWARP_ASSIGN_OR_RETURN(const double skip, NumberOf(header, "HeaderSize", 0));
  if (!(skip >= -1 && skip <= kMaxSkip) || skip != std::floor(skip)) {
    return Invalid("HeaderSize", absl::StrCat("must be -1 to ", kMaxSkip));
  }
  SampleSource source{path, header.end, compressed ? Packing::kZlib : Packing::kRaw};
  const absl::string_view name = header[kDataFile];
  if (name == "LOCAL" || name == "Local" || name == "local") return source;
  if (NamesSeveralFiles(name)) {
    return Unimplemented("ElementDataFile", "samples in several files are not supported");
  }
  INTRAWARP_ASSIGN_OR_RETURN(source.path, DataFileBeside(path, name, kDataFile));
  if (compressed && skip != 0) return Unimplemented("HeaderSize", "beside compressed samples is not supported");
  source.offset = std::max<int64_t>(0, static_cast<int64_t>(skip));
  source.at_end = skip == -1;
  return source;
}

absl::StatusOr<std::vector<uint8_t>> ReadAll(const std::string& path, const Header& header, PixelType type,
                                             int64_t count) {
  INTRAWARP_ASSIGN_OR_RETURN(const SampleSource source, SourceOf(path, header));
  INTRAWARP_ASSIGN_OR_RETURN(const bool big,
                             FlagOf(header, header.OneOf({"ElementByteOrderMSB", "BinaryDataByteOrderMSB"}), false));
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<uint8_t> samples, ReadSamples(source, count * BytesPerPixel(type)));
  if (big) SwapSamples(type, &samples);
  return samples;
}

// The image, of one channel or, when that is asked for, as many channels as dimensions.
absl::StatusOr<Image> ReadImage(const std::string& path, bool vectors, int64_t max_bytes, Header* header) {
  INTRAWARP_ASSIGN_OR_RETURN(*header, ReadHeader(path));
  if (header->Has("ObjectType") && (*header)["ObjectType"] != "Image") return Invalid("ObjectType", "must be Image");
  Image image;
  INTRAWARP_ASSIGN_OR_RETURN(const int dimension, DimensionOf(*header));
  INTRAWARP_ASSIGN_OR_RETURN(const double channels, NumberOf(*header, "ElementNumberOfChannels", 1));
  const int wanted = vectors ? dimension : 1;
  if (channels != wanted) return Invalid("ElementNumberOfChannels", absl::StrCat("must be ", wanted));
  image.channels = wanted;
  INTRAWARP_ASSIGN_OR_RETURN(image.type, TypeOf(*header));
  INTRAWARP_ASSIGN_OR_RETURN(image.geometry, GeometryOf(*header, dimension));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t count, CountSamples(image.geometry, wanted, image.type, max_bytes));
  INTRAWARP_ASSIGN_OR_RETURN(image.samples, ReadAll(path, *header, image.type, count));
  return image;
}

// ---- Out ------------------------------------------------------------------------------------------------------------

absl::string_view TypeName(PixelType type) {
  switch (type) {
    case PixelType::kUint8:
      return "MET_UCHAR";
    case PixelType::kInt8:
      return "MET_CHAR";
    case PixelType::kUint16:
      return "MET_USHORT";
    case PixelType::kInt16:
      return "MET_SHORT";
    case PixelType::kUint32:
      return "MET_UINT";
    case PixelType::kInt32:
      return "MET_INT";
    case PixelType::kFloat32:
      return "MET_FLOAT";
    case PixelType::kFloat64:
      return "MET_DOUBLE";
  }
  return "";
}

std::string HeaderText(const Geometry& g, PixelType type, int channels, absl::string_view data_file) {
  std::string matrix, offset, spacing;
  for (int c = 0; c < 3; ++c) {
    for (int r = 0; r < 3; ++r) absl::StrAppend(&matrix, " ", FormatDouble(g.direction[r][c]));
    absl::StrAppend(&offset, " ", FormatDouble(g.origin[c]));
    absl::StrAppend(&spacing, " ", FormatDouble(g.spacing[c]));
  }
  return absl::StrCat("ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\n",
                      "CompressedData = False\nTransformMatrix =", matrix, "\nOffset =", offset,
                      "\nCenterOfRotation = 0 0 0\nElementSpacing =", spacing, "\nDimSize = ", g.size.x, " ", g.size.y,
                      " ", g.size.z, channels > 1 ? absl::StrCat("\nElementNumberOfChannels = ", channels) : "",
                      "\nElementType = ", TypeName(type), "\n", kDataFile, " = ", data_file, "\n");
}

absl::Status WriteFile(const std::string& path, const Geometry& g, PixelType type, int channels, const void* data,
                       int64_t bytes) {
  if (absl::EndsWith(path, ".mhd")) {
    const std::string name = DetachedName(path, data, bytes, ".raw");
    return WriteDetached(path, HeaderText(g, type, channels, name), name, data, bytes);
  }
  if (!absl::EndsWith(path, ".mha")) return Invalid("path", "must end in .mha or .mhd");
  const std::string text = HeaderText(g, type, channels, "LOCAL");
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  INTRAWARP_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  INTRAWARP_RETURN_IF_ERROR(WriteSamples(file, Packing::kRaw, data, bytes));
  return file.Commit();
}

}  // namespace

absl::StatusOr<HostVolume> ReadMetaImage(const std::string& path, int64_t max_bytes) {
  Header header;
  INTRAWARP_ASSIGN_OR_RETURN(Image image, ReadImage(path, /*vectors=*/false, max_bytes, &header));
  HostVolume volume;
  volume.geometry = image.geometry;
  volume.has_orientation = header.Has(header.OneOf({"TransformMatrix", "Rotation", "Orientation"}));
  volume.pixel_type = image.type;
  volume.pixels = std::move(image.samples);
  INTRAWARP_ASSIGN_OR_RETURN(volume.rescale_slope, NumberOf(header, "ElementToIntensityFunctionSlope", 1));
  INTRAWARP_ASSIGN_OR_RETURN(volume.rescale_intercept, NumberOf(header, "ElementToIntensityFunctionOffset", 0));
  if (volume.rescale_slope == 0) return Invalid("ElementToIntensityFunctionSlope", "is 0");
  return volume;
}

absl::StatusOr<HostField> ReadMetaImageField(const std::string& path, int64_t max_bytes) {
  Header header;
  INTRAWARP_ASSIGN_OR_RETURN(const Image image, ReadImage(path, /*vectors=*/true, max_bytes, &header));
  INTRAWARP_ASSIGN_OR_RETURN(const double unit, UnitOf(header));
  if (unit != 1) return Unimplemented("DistanceUnits", "of a displacement field must be mm");
  HostField field;
  field.geometry = image.geometry;
  INTRAWARP_ASSIGN_OR_RETURN(
      field.displacement,
      ToDisplacement(image.samples, image.type, static_cast<int>(image.channels), {1, 1, 1}, "ElementType"));
  return field;
}

absl::Status WriteMetaImage(const std::string& path, const HostVolume& volume) {
  INTRAWARP_RETURN_IF_ERROR(CheckVolume(volume));
  const HostVolume plain = WithoutRescale(volume);
  return WriteFile(path, plain.geometry, plain.pixel_type, 1, plain.pixels.data(),
                   static_cast<int64_t>(plain.pixels.size()));
}

absl::Status WriteMetaImageField(const std::string& path, const Geometry& geometry, const float* displacement) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(geometry));
  return WriteFile(path, geometry, PixelType::kFloat32, 3, displacement,
                   3 * geometry.voxels() * static_cast<int64_t>(sizeof(float)));
}

}  // namespace intrawarp::io
