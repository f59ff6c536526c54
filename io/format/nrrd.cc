// SPDX-License-Identifier: Apache-2.0
// Written after the definition of the format, https://teem.sourceforge.net/nrrd/format.html. Teem's reader is not used:
// it allocates by the header before it has looked at the file, opens whatever path a header names, and knows no limit.
#include "io/format/nrrd.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
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

constexpr int64_t kMaxHeader = int64_t{1} << 20;
constexpr int64_t kMaxSkip = int64_t{256} << 20;
constexpr int kMaxDimension = 16;  // NRRD_DIM_MAX
constexpr absl::string_view kFieldType = "displacement field type";

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}
absl::Status Unimplemented(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kUnimplemented, field, what);
}

// ---- Header in ------------------------------------------------------------------------------------------------------

struct Header {
  std::map<std::string, std::string, std::less<>> fields;  // "space directions", in the spelling with spaces
  std::string field_type;                                  // the value of the key kFieldType
  int64_t end = 0;                                         // the first byte after the header

  // Empty for a field that is not there.
  absl::string_view operator[](absl::string_view name) const {
    const auto it = fields.find(name);
    return it == fields.end() ? absl::string_view() : absl::string_view(it->second);
  }
  bool Has(absl::string_view name) const { return fields.find(name) != fields.end(); }
};

std::string FieldName(absl::string_view spelled) {
  static constexpr std::pair<absl::string_view, absl::string_view> kAliases[] = {
      {"datafile", "data file"}, {"lineskip", "line skip"}, {"byteskip", "byte skip"},
      {"axismins", "axis mins"}, {"axismaxs", "axis maxs"}, {"centers", "centerings"}};
  const std::string name = absl::AsciiStrToLower(absl::StripAsciiWhitespace(spelled));
  for (const auto& [alias, canonical] : kAliases) {
    if (name == alias) return std::string(canonical);
  }
  return name;
}

absl::Status TakeLine(absl::string_view line, Header* header) {
  if (line[0] == '#') return absl::OkStatus();
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return Invalid("header", "has a line without a field");
  const bool is_key = colon + 1 < line.size() && line[colon + 1] == '=';
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + (is_key ? 2 : 1)));
  if (is_key) {
    if (line.substr(0, colon) == kFieldType) header->field_type = std::string(value);
    return absl::OkStatus();
  }
  const auto [it, added] = header->fields.emplace(FieldName(line.substr(0, colon)), std::string(value));
  return added ? absl::OkStatus() : Invalid("header", "states a field twice");
}

absl::StatusOr<Header> ReadHeader(const std::string& path) {
  bool whole = false;
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadHead(path, kMaxHeader, &whole));
  constexpr absl::string_view kMagic = "NRRD000";
  const bool magic = text.size() > kMagic.size() && absl::StartsWith(text, kMagic) && text[kMagic.size()] >= '1' &&
                     text[kMagic.size()] <= '5';
  if (!magic) return Invalid("header", "the magic is not one of NRRD0001 to NRRD0005");
  Header header;
  bool first = true;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos && !whole) return Invalid("header", "is longer than 1 MiB");
    const size_t length = (end == std::string::npos ? text.size() : end) - at;
    const absl::string_view line = absl::StripTrailingAsciiWhitespace(absl::string_view(text).substr(at, length));
    at = std::min(text.size(), at + length + 1);
    header.end = static_cast<int64_t>(at);
    if (line.empty()) return header;
    if (!std::exchange(first, false)) INTRAWARP_RETURN_IF_ERROR(TakeLine(line, &header));
  }
  if (!whole) return Invalid("header", "is longer than 1 MiB");
  return header;
}

std::vector<absl::string_view> Words(absl::string_view text) {
  return absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
}

absl::StatusOr<PixelType> TypeOf(const Header& header) {
  static constexpr std::pair<absl::string_view, PixelType> kTypes[] = {{"signed char", PixelType::kInt8},
                                                                       {"int8", PixelType::kInt8},
                                                                       {"int8_t", PixelType::kInt8},
                                                                       {"uchar", PixelType::kUint8},
                                                                       {"unsigned char", PixelType::kUint8},
                                                                       {"uint8", PixelType::kUint8},
                                                                       {"uint8_t", PixelType::kUint8},
                                                                       {"short", PixelType::kInt16},
                                                                       {"short int", PixelType::kInt16},
                                                                       {"signed short", PixelType::kInt16},
                                                                       {"signed short int", PixelType::kInt16},
                                                                       {"int16", PixelType::kInt16},
                                                                       {"int16_t", PixelType::kInt16},
                                                                       {"ushort", PixelType::kUint16},
                                                                       {"unsigned short", PixelType::kUint16},
                                                                       {"unsigned short int", PixelType::kUint16},
                                                                       {"uint16", PixelType::kUint16},
                                                                       {"uint16_t", PixelType::kUint16},
                                                                       {"int", PixelType::kInt32},
                                                                       {"signed int", PixelType::kInt32},
                                                                       {"int32", PixelType::kInt32},
                                                                       {"int32_t", PixelType::kInt32},
                                                                       {"uint", PixelType::kUint32},
                                                                       {"unsigned int", PixelType::kUint32},
                                                                       {"uint32", PixelType::kUint32},
                                                                       {"uint32_t", PixelType::kUint32},
                                                                       {"float", PixelType::kFloat32},
                                                                       {"double", PixelType::kFloat64}};
  static constexpr absl::string_view kOthers[] = {"longlong",
                                                  "long long",
                                                  "long long int",
                                                  "signed long long",
                                                  "signed long long int",
                                                  "int64",
                                                  "int64_t",
                                                  "ulonglong",
                                                  "uint64",
                                                  "uint64_t",
                                                  "unsigned long long",
                                                  "block",
                                                  "unsigned long long int"};
  if (!header.Has("type")) return Invalid("type", "is missing");
  const std::string name = absl::AsciiStrToLower(header["type"]);
  for (const auto& [spelled, type] : kTypes) {
    if (name == spelled) return type;
  }
  for (const absl::string_view spelled : kOthers) {
    if (name == spelled) return Unimplemented("type", absl::StrCat(spelled, " is not supported"));
  }
  return Invalid("type", "is none of NRRD's");
}

absl::StatusOr<std::vector<int64_t>> SizesOf(const Header& header) {
  int dimension = 0;
  if (!absl::SimpleAtoi(header["dimension"], &dimension) || dimension < 1 || dimension > kMaxDimension) {
    return Invalid("dimension", absl::StrCat("must be 1 to ", kMaxDimension));
  }
  std::vector<int64_t> sizes;
  for (const absl::string_view word : Words(header["sizes"])) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(word, &size) || size < 1 || size > kMaxAxis) {
      return Invalid("sizes", absl::StrCat("must be whole numbers from 1 to ", kMaxAxis));
    }
    sizes.push_back(size);
  }
  if (static_cast<int>(sizes.size()) == dimension) return sizes;
  return Invalid("sizes", absl::StrCat("has ", sizes.size(), " numbers, dimension says ", dimension));
}

// The next "(a,b,c)" or "none" (an empty vector) at the front of the text.
absl::StatusOr<std::vector<double>> TakeVector(absl::string_view field, absl::string_view* text) {
  *text = absl::StripLeadingAsciiWhitespace(*text);
  if (absl::StartsWithIgnoreCase(*text, "none")) {
    text->remove_prefix(4);
    return std::vector<double>();
  }
  const size_t close = text->find(')');
  if (text->empty() || text->front() != '(' || close == absl::string_view::npos) {
    return Invalid(field, "must be vectors like (1,0,0)");
  }
  std::vector<double> vector;
  for (const absl::string_view number : absl::StrSplit(text->substr(1, close - 1), ',')) {
    const absl::StatusOr<double> value = ParseFinite(number);
    if (!value.ok()) return Invalid(field, absl::StrCat("a number is ", value.status().message()));
    vector.push_back(*value);
  }
  text->remove_prefix(close + 1);
  return vector;
}

absl::StatusOr<std::vector<std::vector<double>>> VectorsOf(const Header& header, absl::string_view field, size_t count,
                                                           size_t length) {
  absl::string_view text = header[field];
  std::vector<std::vector<double>> vectors;
  while (!absl::StripAsciiWhitespace(text).empty()) {
    if (vectors.size() == count) return Invalid(field, absl::StrCat("must have ", count, " vectors"));
    INTRAWARP_ASSIGN_OR_RETURN(std::vector<double> vector, TakeVector(field, &text));
    if (!vector.empty() && vector.size() != length) {
      return Invalid(field, absl::StrCat("a vector has ", vector.size(), " numbers, must have ", length));
    }
    vectors.push_back(std::move(vector));
  }
  if (vectors.size() != count) return Invalid(field, absl::StrCat("must have ", count, " vectors"));
  return vectors;
}

// ---- Space in -------------------------------------------------------------------------------------------------------

struct Space {
  size_t dimension = 0;   // 0: the file states no space
  Vec3d to_lps{1, 1, 1};  // signs
  double unit = 1;        // mm
};

absl::StatusOr<double> UnitOf(const Header& header) {
  static constexpr std::pair<absl::string_view, double> kUnits[] = {
      {"mm", 1},    {"millimeter", 1}, {"millimeters", 1}, {"millimetre", 1},   {"cm", 10},  {"m", 1000},
      {"um", 1e-3}, {"micron", 1e-3},  {"microns", 1e-3},  {"\xC2\xB5m", 1e-3}, {"nm", 1e-6}};
  std::optional<double> unit;
  for (const absl::string_view quoted : Words(header["space units"])) {
    const absl::string_view word = absl::StripSuffix(absl::StripPrefix(quoted, "\""), "\"");
    if (word.empty()) continue;
    const auto* known =
        std::find_if(std::begin(kUnits), std::end(kUnits), [&](const auto& u) { return u.first == word; });
    if (known == std::end(kUnits))
      return Unimplemented("space units", "only units of length from nm to m are supported");
    if (unit.value_or(known->second) != known->second) {
      return Unimplemented("space units", "must be the same on all axes");
    }
    unit = known->second;
  }
  return unit.value_or(1.0);
}

absl::StatusOr<Space> SpaceOf(const Header& header) {
  Space space;
  INTRAWARP_ASSIGN_OR_RETURN(space.unit, UnitOf(header));
  if (header.Has("space dimension")) {
    if (header.Has("space")) return Invalid("space dimension", "must not be given beside space");
    int dimension = 0;
    if (!absl::SimpleAtoi(header["space dimension"], &dimension) || dimension < 1) {
      return Invalid("space dimension", "must be a whole number above 0");
    }
    if (dimension != 2 && dimension != 3) return Unimplemented("space dimension", "must be 2 or 3");
    space.dimension = static_cast<size_t>(dimension);
    return space;
  }
  if (!header.Has("space")) return space;
  space.dimension = 3;
  const std::string name = absl::AsciiStrToLower(header["space"]);
  if (name == "left-posterior-superior" || name == "lps") return space;
  space.to_lps = {-1, -1, 1};
  if (name == "right-anterior-superior" || name == "ras") return space;
  space.to_lps = {1, -1, 1};
  if (name == "left-anterior-superior" || name == "las") return space;
  return Unimplemented("space", "only left-posterior-superior, right-anterior-superior and left-anterior-superior");
}

bool IsSpatialKind(absl::string_view kind) { return kind == "domain" || kind == "space"; }

struct Axes {
  std::vector<int64_t> sizes;
  std::vector<std::string> kinds;               // empty, or one an axis
  std::vector<std::vector<double>> directions;  // empty, or one an axis, empty itself for "none"
  std::vector<double> spacings;                 // empty, or one an axis; NaN where it is not known

  bool spatial(size_t a) const {
    if (!directions.empty()) return !directions[a].empty();
    return kinds.empty() || IsSpatialKind(kinds[a]);
  }
};

absl::StatusOr<std::vector<double>> SpacingsOf(const Header& header, size_t count) {
  std::vector<double> spacings;
  for (const absl::string_view word : Words(header["spacings"])) {
    const absl::StatusOr<double> value = ParseFinite(word);
    if (!value.ok() && !absl::EqualsIgnoreCase(word, "nan")) return Invalid("spacings", "must be numbers or nan");
    spacings.push_back(value.ok() ? *value : std::nan(""));
  }
  if (spacings.size() == count) return spacings;
  return Invalid("spacings", absl::StrCat("has ", spacings.size(), " numbers, dimension says ", count));
}

absl::StatusOr<Axes> AxesOf(const Header& header, const Space& space) {
  Axes axes;
  INTRAWARP_ASSIGN_OR_RETURN(axes.sizes, SizesOf(header));
  const size_t count = axes.sizes.size();
  if (header.Has("axis mins") || header.Has("axis maxs")) return Unimplemented("axis mins", "is not supported");
  if (header.Has("kinds")) {
    for (const absl::string_view word : Words(header["kinds"])) axes.kinds.push_back(absl::AsciiStrToLower(word));
    if (axes.kinds.size() != count) return Invalid("kinds", absl::StrCat("must have ", count, " words"));
  }
  if (header.Has("space directions")) {
    if (space.dimension == 0) return Invalid("space directions", "need space or space dimension");
    INTRAWARP_ASSIGN_OR_RETURN(axes.directions, VectorsOf(header, "space directions", count, space.dimension));
  }
  if (header.Has("spacings") && axes.directions.empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(axes.spacings, SpacingsOf(header, count));
  }
  return axes;
}

absl::StatusOr<Vec3d> OriginOf(const Header& header, const Space& space) {
  Vec3d origin;
  if (!header.Has("space origin")) return origin;
  if (space.dimension == 0) return Invalid("space origin", "needs space or space dimension");
  INTRAWARP_ASSIGN_OR_RETURN(const auto vectors, VectorsOf(header, "space origin", 1, space.dimension));
  if (vectors[0].empty()) return Invalid("space origin", "must be a vector");
  for (size_t r = 0; r < space.dimension; ++r) {
    origin[static_cast<int>(r)] = space.unit * space.to_lps[static_cast<int>(r)] * vectors[0][r];
  }
  return origin;
}

// The step along a spatial axis, LPS mm. Without a direction the axis is that of its place among the spatial ones.
absl::StatusOr<Vec3d> StepOf(const Axes& axes, size_t axis, int place, const Space& space) {
  Vec3d step;
  if (!axes.directions.empty()) {
    const std::vector<double>& direction = axes.directions[axis];
    for (size_t r = 0; r < direction.size(); ++r) {
      step[static_cast<int>(r)] = space.unit * space.to_lps[static_cast<int>(r)] * direction[r];
    }
    return step;
  }
  const double spacing = axes.spacings.empty() ? 1 : axes.spacings[axis];
  if (std::isnan(spacing) && axes.sizes[axis] > 1) return Invalid("spacings", "nan on an axis of several samples");
  step[place] = space.to_lps[place] * (std::isnan(spacing) ? 1 : spacing);
  return step;
}

absl::StatusOr<Geometry> GeometryOf(const Header& header, const Axes& axes, const Space& space) {
  Int3 size{1, 1, 1};
  Vec3d steps[3];
  int place = 0;
  for (size_t a = 0; a < axes.sizes.size(); ++a) {
    if (!axes.spatial(a)) continue;
    if (place == 3) return Invalid("dimension", "has more than three axes in space");
    size[place] = static_cast<int>(axes.sizes[a]);
    INTRAWARP_ASSIGN_OR_RETURN(steps[place], StepOf(axes, a, place, space));
    ++place;
  }
  if (place < 2) return Invalid("dimension", "has fewer than two axes in space");
  INTRAWARP_ASSIGN_OR_RETURN(const Vec3d origin, OriginOf(header, space));
  return GeometryFromAxes(size, steps, origin);
}

// ---- Samples in -----------------------------------------------------------------------------------------------------

absl::StatusOr<Packing> PackingOf(const Header& header) {
  if (!header.Has("encoding")) return Invalid("encoding", "is missing");
  const std::string name = absl::AsciiStrToLower(header["encoding"]);
  if (name == "raw") return Packing::kRaw;
  if (name == "gzip" || name == "gz") return Packing::kGzip;
  for (const absl::string_view other : {"txt", "text", "ascii", "hex", "bz2", "bzip2", "zrl"}) {
    if (name == other) return Unimplemented("encoding", absl::StrCat(other, " is not supported"));
  }
  return Invalid("encoding", "is none of NRRD's");
}

absl::StatusOr<SampleSource> SourceOf(const std::string& path, const Header& header) {
  SampleSource source{path, header.end};
  INTRAWARP_ASSIGN_OR_RETURN(source.packing, PackingOf(header));
  int64_t skip = 0;
  if (header.Has("line skip") && (!absl::SimpleAtoi(header["line skip"], &skip) || skip != 0)) {
    return Unimplemented("line skip", "is not supported");
  }
  if (header.Has("byte skip") && (!absl::SimpleAtoi(header["byte skip"], &skip) || skip < -1 || skip > kMaxSkip)) {
    return Invalid("byte skip", absl::StrCat("must be -1 to ", kMaxSkip));
  }
  source.at_end = skip == -1;
  if (source.at_end && source.packing != Packing::kRaw) return Invalid("byte skip", "-1 is only for raw samples");
  source.skip = std::max<int64_t>(0, skip);
  if (!header.Has("data file")) return source;
  const absl::string_view name = header["data file"];
  if (NamesSeveralFiles(name)) {
    return Unimplemented("data file", "samples in several files are not supported");
  }
  INTRAWARP_ASSIGN_OR_RETURN(source.path, DataFileBeside(path, name, "data file"));
  source.offset = 0;
  return source;
}

// The bytes of all samples, in native order.
absl::StatusOr<std::vector<uint8_t>> ReadAll(const std::string& path, const Header& header, PixelType type,
                                             int64_t count) {
  INTRAWARP_ASSIGN_OR_RETURN(const SampleSource source, SourceOf(path, header));
  const std::string endian = absl::AsciiStrToLower(header["endian"]);
  const bool one_byte = BytesPerPixel(type) == 1;
  if (!one_byte && endian != "little" && endian != "big") return Invalid("endian", "must be little or big");
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<uint8_t> samples, ReadSamples(source, count * BytesPerPixel(type)));
  if (!one_byte && endian == "big") SwapSamples(type, &samples);
  return samples;
}

// Planes of one component each, interleaved.
std::vector<uint8_t> Interleave(const std::vector<uint8_t>& planes, int64_t components, int64_t sample_bytes) {
  std::vector<uint8_t> out(planes.size());
  const int64_t voxels = static_cast<int64_t>(planes.size()) / (components * sample_bytes);
  for (int64_t c = 0; c < components; ++c) {
    for (int64_t i = 0; i < voxels; ++i) {
      std::memcpy(out.data() + (i * components + c) * sample_bytes, planes.data() + (c * voxels + i) * sample_bytes,
                  static_cast<size_t>(sample_bytes));
    }
  }
  return out;
}

// The axis of a field's components: the one that is not in space.
absl::StatusOr<size_t> VectorAxisOf(const Axes& axes) {
  std::optional<size_t> found;
  for (size_t a = 0; a < axes.sizes.size(); ++a) {
    if (axes.spatial(a)) continue;
    if (found.has_value()) return Invalid("kinds", "several axes are not in space");
    found = a;
  }
  if (!found.has_value() || axes.kinds.empty()) return Invalid("kinds", "no axis is a vector");
  const std::string& kind = axes.kinds[*found];
  if (kind != "vector" && kind != "3-vector" && kind != "2-vector") return Invalid("kinds", "no axis is a vector");
  if (*found != 0 && *found + 1 != axes.sizes.size()) {
    return Unimplemented("kinds", "the axis of the vector must be the first or the last");
  }
  return *found;
}

absl::Status CheckFieldMeaning(const Header& header, const Space& space) {
  if (space.to_lps.x < 0 || space.to_lps.y < 0) {
    return Unimplemented("space", "of a displacement field must be left-posterior-superior");
  }
  if (space.unit != 1) return Unimplemented("space units", "of a displacement field must be mm");
  if (header.field_type == "modeling") {
    return Unimplemented("displacement field type", "modeling, the inverse map, is not supported");
  }
  if (!header.field_type.empty() && header.field_type != "resampling") {
    return Invalid("displacement field type", "must be resampling");
  }
  if (!header.Has("measurement frame")) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(const auto frame,
                             VectorsOf(header, "measurement frame", space.dimension, space.dimension));
  for (size_t c = 0; c < frame.size(); ++c) {
    for (size_t r = 0; r < frame[c].size(); ++r) {
      if (frame[c][r] != (r == c ? 1 : 0)) return Unimplemented("measurement frame", "must be the identity");
    }
  }
  return absl::OkStatus();
}

// ---- Out ------------------------------------------------------------------------------------------------------------

absl::string_view TypeName(PixelType type) {
  switch (type) {
    case PixelType::kUint8:
      return "unsigned char";
    case PixelType::kInt8:
      return "signed char";
    case PixelType::kUint16:
      return "unsigned short";
    case PixelType::kInt16:
      return "short";
    case PixelType::kUint32:
      return "unsigned int";
    case PixelType::kInt32:
      return "int";
    case PixelType::kFloat32:
      return "float";
    case PixelType::kFloat64:
      return "double";
  }
  return "";
}

std::string VectorText(Vec3d v) {
  return absl::StrCat("(", FormatDouble(v.x), ",", FormatDouble(v.y), ",", FormatDouble(v.z), ")");
}

std::string HeaderText(const Geometry& g, PixelType type, bool field, absl::string_view encoding) {
  std::string directions, sizes = absl::StrCat(g.size.x, " ", g.size.y, " ", g.size.z);
  for (int c = 0; c < 3; ++c) {
    const Vec3d axis{g.direction[0][c], g.direction[1][c], g.direction[2][c]};
    absl::StrAppend(&directions, " ", VectorText(g.spacing[c] * axis));
  }
  const AffineMap map = IndexToPhysical(g);
  return absl::StrCat("NRRD0004\ntype: ", TypeName(type), "\ndimension: ", field ? 4 : 3,
                      "\nspace: left-posterior-superior\nsizes: ", field ? "3 " : "", sizes,
                      "\nspace directions:", field ? " none" : "", directions, "\nkinds: ", field ? "vector " : "",
                      "domain domain domain\nendian: little\nencoding: ", encoding,
                      "\nspace origin: ", VectorText({map.m[0][3], map.m[1][3], map.m[2][3]}), "\n",
                      field ? absl::StrCat(kFieldType, ":=resampling\n") : "");
}

absl::Status WriteFile(const std::string& path, const Geometry& g, PixelType type, bool field, const void* data,
                       int64_t bytes) {
  if (absl::EndsWith(path, ".nhdr")) {
    const std::string name = DetachedName(path, data, bytes, ".raw");
    const std::string text = absl::StrCat(HeaderText(g, type, field, "raw"), "data file: ", name, "\n");
    return WriteDetached(path, text, name, data, bytes);
  }
  if (!absl::EndsWith(path, ".nrrd")) return Invalid("path", "must end in .nrrd or .nhdr");
  const std::string text = absl::StrCat(HeaderText(g, type, field, "gzip"), "\n");
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  INTRAWARP_RETURN_IF_ERROR(file.Write(text.data(), text.size()));
  INTRAWARP_RETURN_IF_ERROR(WriteSamples(file, Packing::kGzip, data, bytes));
  return file.Commit();
}

}  // namespace

absl::StatusOr<HostVolume> ReadNrrd(const std::string& path, int64_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const Header header, ReadHeader(path));
  INTRAWARP_ASSIGN_OR_RETURN(const Space space, SpaceOf(header));
  INTRAWARP_ASSIGN_OR_RETURN(const Axes axes, AxesOf(header, space));
  for (size_t a = 0; a < axes.sizes.size(); ++a) {
    if (!axes.spatial(a) && axes.sizes[a] > 1) {
      return Invalid("sizes",
                     absl::StrCat("axis ", a, " is not in space and has ", axes.sizes[a], " samples, must have one"));
    }
  }
  HostVolume volume;
  INTRAWARP_ASSIGN_OR_RETURN(volume.pixel_type, TypeOf(header));
  INTRAWARP_ASSIGN_OR_RETURN(volume.geometry, GeometryOf(header, axes, space));
  volume.has_orientation = header.Has("space");
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t count, CountSamples(volume.geometry, 1, volume.pixel_type, max_bytes));
  INTRAWARP_ASSIGN_OR_RETURN(volume.pixels, ReadAll(path, header, volume.pixel_type, count));
  return volume;
}

absl::StatusOr<HostField> ReadNrrdField(const std::string& path, int64_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const Header header, ReadHeader(path));
  INTRAWARP_ASSIGN_OR_RETURN(const Space space, SpaceOf(header));
  INTRAWARP_ASSIGN_OR_RETURN(const Axes axes, AxesOf(header, space));
  INTRAWARP_ASSIGN_OR_RETURN(const size_t vector_axis, VectorAxisOf(axes));
  INTRAWARP_RETURN_IF_ERROR(CheckFieldMeaning(header, space));
  INTRAWARP_ASSIGN_OR_RETURN(const PixelType type, TypeOf(header));
  HostField field;
  INTRAWARP_ASSIGN_OR_RETURN(field.geometry, GeometryOf(header, axes, space));
  const int64_t components = axes.sizes[vector_axis];
  if (components != 3 && (components != 2 || !field.geometry.is_2d())) {
    return Invalid("sizes", absl::StrCat("a displacement has ", components, " components, must have three"));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t count, CountSamples(field.geometry, components, type, max_bytes));
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<uint8_t> samples, ReadAll(path, header, type, count));
  if (vector_axis != 0) samples = Interleave(samples, components, BytesPerPixel(type));
  INTRAWARP_ASSIGN_OR_RETURN(field.displacement,
                             ToDisplacement(samples, type, static_cast<int>(components), {1, 1, 1}, "type"));
  return field;
}

absl::Status WriteNrrd(const std::string& path, const HostVolume& volume) {
  INTRAWARP_RETURN_IF_ERROR(CheckVolume(volume));
  const HostVolume plain = WithoutRescale(volume);
  return WriteFile(path, plain.geometry, plain.pixel_type, false, plain.pixels.data(),
                   static_cast<int64_t>(plain.pixels.size()));
}

absl::Status WriteNrrdField(const std::string& path, const Geometry& geometry, const float* displacement) {
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(geometry));
  return WriteFile(path, geometry, PixelType::kFloat32, true, displacement,
                   3 * geometry.voxels() * static_cast<int64_t>(sizeof(float)));
}

}  // namespace intrawarp::io
