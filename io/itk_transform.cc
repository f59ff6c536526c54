// SPDX-License-Identifier: Apache-2.0
#include "io/itk_transform.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "io/file.h"

namespace intrawarp::io {
namespace {

constexpr absl::string_view kMagic = "#Insight Transform File V1.0";
// The least number of control points along an axis of a spline.
constexpr int kMinNodes = 4;
constexpr size_t kMaxTransforms = 1024;

// One "Transform: ..." of the file with the lines that follow it.
struct Block {
  absl::string_view type;
  absl::string_view parameters;
  absl::string_view fixed_parameters;
};

absl::StatusOr<std::vector<Block>> SplitBlocks(absl::string_view text) {
  if (!absl::StartsWith(text, kMagic)) return absl::InvalidArgumentError("file: is not an Insight Transform File");
  std::vector<Block> blocks;
  for (absl::string_view raw : absl::StrSplit(text, '\n')) {
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line[0] == '#') continue;
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos) return absl::InvalidArgumentError("file: has a line without a key");
    const absl::string_view key = line.substr(0, colon), value = absl::StripAsciiWhitespace(line.substr(colon + 1));
    if (key == "Transform") {
      if (blocks.size() == kMaxTransforms) {
        return absl::UnimplementedError(absl::StrCat("Transform: a list of more than ", kMaxTransforms));
      }
      blocks.push_back({value, {}, {}});
    } else if (blocks.empty()) {
      return absl::InvalidArgumentError("Transform: is missing");
    } else if (key == "Parameters") {
      blocks.back().parameters = value;
    } else if (key == "FixedParameters") {
      blocks.back().fixed_parameters = value;
    }
  }
  return blocks;
}

// Exactly `count` finite numbers.
template <typename T>
absl::Status ParseNumbers(absl::string_view text, int64_t count, absl::string_view field, std::vector<T>* numbers) {
  // Every number takes two characters or more, so the text bounds what is allocated.
  if (count > static_cast<int64_t>(text.size() / 2 + 1)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": has fewer than ", count, " numbers"));
  }
  numbers->clear();
  numbers->reserve(static_cast<size_t>(count));
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
    const absl::StatusOr<double> value = ParseFinite(word);
    if (!value.ok()) return absl::InvalidArgumentError(absl::StrCat(field, ": a number is ", value.status().message()));
    if (static_cast<int64_t>(numbers->size()) == count || !std::isfinite(static_cast<T>(*value))) {
      return absl::InvalidArgumentError(absl::StrCat(field, ": must have ", count, " numbers that float32 holds"));
    }
    numbers->push_back(static_cast<T>(*value));
  }
  if (static_cast<int64_t>(numbers->size()) < count) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": has ", numbers->size(), " numbers, must have ", count));
  }
  return absl::OkStatus();
}

// The parameters are the matrix row by row and a translation; the fixed parameters are the centre of rotation.
absl::StatusOr<AffineMap> ParseAffine(const Block& block) {
  std::vector<double> p, centre;
  INTRAWARP_RETURN_IF_ERROR(ParseNumbers(block.parameters, 12, "Parameters", &p));
  INTRAWARP_RETURN_IF_ERROR(ParseNumbers(block.fixed_parameters, 3, "FixedParameters", &centre));
  AffineMap map;
  for (int r = 0; r < 3; ++r) {
    map.m[r][3] = p[9 + r] + centre[r];
    for (int c = 0; c < 3; ++c) {
      map.m[r][c] = p[3 * r + c];
      map.m[r][3] -= p[3 * r + c] * centre[c];
    }
  }
  if (IsSingular(map)) return absl::InvalidArgumentError("Parameters: the matrix is singular");
  return map;
}

// The fixed parameters are size, origin, spacing, then the direction row by row.
absl::StatusOr<Geometry> ParseGrid(const Block& block) {
  std::vector<double> p;
  INTRAWARP_RETURN_IF_ERROR(ParseNumbers(block.fixed_parameters, 18, "FixedParameters", &p));
  Geometry grid;
  for (int a = 0; a < 3; ++a) {
    if (!(p[a] >= kMinNodes && p[a] <= kMaxAxis) || p[a] != std::floor(p[a])) {
      return absl::InvalidArgumentError(absl::StrCat("FixedParameters: ", p[a], " control points along an axis"));
    }
    grid.size[a] = static_cast<int>(p[a]);
    grid.origin[a] = p[3 + a];
    grid.spacing[a] = p[6 + a];
    for (int c = 0; c < 3; ++c) grid.direction[a][c] = p[9 + 3 * a + c];
  }
  const absl::Status valid = ValidateGeometry(grid);
  if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat("FixedParameters: ", valid.message()));
  return grid;
}

absl::Status ParseSpline(const Block& block, ControlGridFile* file) {
  INTRAWARP_ASSIGN_OR_RETURN(file->grid, ParseGrid(block));
  const int64_t nodes = file->grid.voxels();
  std::vector<float> planes;
  INTRAWARP_RETURN_IF_ERROR(ParseNumbers(block.parameters, 3 * nodes, "Parameters", &planes));
  file->coefficients.resize(planes.size());
  for (int64_t i = 0; i < nodes; ++i)
    for (int c = 0; c < 3; ++c) file->coefficients[3 * i + c] = planes[c * nodes + i];
  return absl::OkStatus();
}

bool HasFiniteTranslation(const AffineMap& map) {
  return std::isfinite(map.m[0][3]) && std::isfinite(map.m[1][3]) && std::isfinite(map.m[2][3]);
}

bool IsComposite(const Block& block) { return absl::StartsWith(block.type, "CompositeTransform_"); }
bool IsSpline(const Block& block) { return block.type == "BSplineTransform_double_3_3"; }
bool IsAffine(const Block& block) {
  return block.type == "AffineTransform_double_3_3" || block.type == "MatrixOffsetTransformBase_double_3_3";
}

// Leaves the transforms that the file composes. ITK composes the transforms after a CompositeTransform, which stands
// first; in any other list ITK sees transforms that have nothing to do with each other.
absl::Status TakeQueue(std::vector<Block>* blocks) {
  const bool composed = !blocks->empty() && IsComposite(blocks->front());
  if (composed) blocks->erase(blocks->begin());
  if (!composed && blocks->size() > 1) {
    return absl::UnimplementedError("Transform: a list without a CompositeTransform, which ITK does not compose");
  }
  if (std::any_of(blocks->begin(), blocks->end(), IsComposite)) {
    return absl::UnimplementedError("Transform: a CompositeTransform that is not the first of the list");
  }
  return absl::OkStatus();
}

// Affine transforms and then one spline are T(x) = A(x + u(x)). Other lists cannot be written that way.
absl::Status CheckQueue(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) {
    if (!IsSpline(block) && !IsAffine(block)) {
      return absl::UnimplementedError("Transform: neither affine nor a B-spline of order 3 in three dimensions");
    }
  }
  const auto spline = std::find_if(blocks.begin(), blocks.end(), IsSpline);
  if (spline == blocks.end()) return absl::UnimplementedError("Transform: without a B-spline");
  if (spline + 1 != blocks.end()) return absl::UnimplementedError("Transform: a B-spline that is not the last one");
  return absl::OkStatus();
}

void AppendNumber(double value, std::string* text) { absl::StrAppend(text, " ", FormatDouble(value)); }

// The grid as ITK takes it: four planes for one.
ControlGridFile WithFourPlanes(const ControlGridFile& file) {
  ControlGridFile out = file;
  if (file.grid.size.z != 1) return out;
  out.grid.size.z = kMinNodes;
  for (int r = 0; r < 3; ++r) out.grid.origin[r] -= 1.5 * file.grid.spacing.z * file.grid.direction[r][2];
  for (int plane = 1; plane < kMinNodes; ++plane) {
    out.coefficients.insert(out.coefficients.end(), file.coefficients.begin(), file.coefficients.end());
  }
  return out;
}

}  // namespace

absl::StatusOr<ControlGridFile> ParseItkTransform(absl::string_view text) {
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<Block> blocks, SplitBlocks(text));
  INTRAWARP_RETURN_IF_ERROR(TakeQueue(&blocks));
  INTRAWARP_RETURN_IF_ERROR(CheckQueue(blocks));
  ControlGridFile file;
  INTRAWARP_RETURN_IF_ERROR(ParseSpline(blocks.back(), &file));
  for (size_t i = 0; i + 1 < blocks.size(); ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(const AffineMap inner, ParseAffine(blocks[i]));
    file.affine = Compose(file.affine, inner);
  }
  if (IsSingular(file.affine) || !HasFiniteTranslation(file.affine)) {
    return absl::InvalidArgumentError("Parameters: the product of the matrices is singular or not finite");
  }
  return file;
}

absl::StatusOr<ControlGridFile> ReadItkTransform(const std::string& path, size_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, max_bytes));
  return ParseItkTransform(text);
}

std::string FormatItkTransform(const ControlGridFile& original) {
  const ControlGridFile file = WithFourPlanes(original);
  std::string text = absl::StrCat(kMagic, "\n#Transform 0\nTransform: CompositeTransform_double_3_3\n",
                                  "#Transform 1\nTransform: AffineTransform_double_3_3\nParameters:");
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) AppendNumber(file.affine.m[r][c], &text);
  for (int r = 0; r < 3; ++r) AppendNumber(file.affine.m[r][3], &text);
  text += "\nFixedParameters: 0 0 0\n#Transform 2\nTransform: BSplineTransform_double_3_3\nParameters:";
  const int64_t nodes = file.grid.voxels();
  for (int c = 0; c < 3; ++c)
    for (int64_t i = 0; i < nodes; ++i) AppendNumber(file.coefficients[3 * i + c], &text);
  text += "\nFixedParameters:";
  for (int a = 0; a < 3; ++a) AppendNumber(file.grid.size[a], &text);
  for (int a = 0; a < 3; ++a) AppendNumber(file.grid.origin[a], &text);
  for (int a = 0; a < 3; ++a) AppendNumber(file.grid.spacing[a], &text);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) AppendNumber(file.grid.direction[r][c], &text);
  text += "\n";
  return text;
}

absl::Status WriteItkTransform(const std::string& path, const ControlGridFile& file) {
  return WriteSmallFile(path, FormatItkTransform(file));
}

}  // namespace intrawarp::io
