// SPDX-License-Identifier: Apache-2.0
#include "io/format/itk_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/format/axes.h"
#include "io/format/volume.h"

namespace intrawarp::io {
namespace {

// The least number of control points along an axis of a spline.
constexpr int kMinNodes = 4;
// The sine of the largest angle by which an affine map may shear a grid that it moves. Over half a metre it is half a
// micrometre.
constexpr double kMaxShear = 1e-6;

absl::Status Unimplemented(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kUnimplemented, field, what);
}
absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}

// ---- Affine types ---------------------------------------------------------------------------------------------------

using Numbers = std::vector<double>;

// A linear map about a centre, and a translation: x -> L (x - c) + c + t.
AffineMap About(const AffineMap& linear, const double* centre, const double* translation) {
  AffineMap map = linear;
  for (int r = 0; r < 3; ++r) {
    map.m[r][3] = translation[r] + centre[r];
    for (int c = 0; c < 3; ++c) map.m[r][3] -= linear.m[r][c] * centre[c];
  }
  return map;
}

AffineMap FromRows(const double* rows) {
  AffineMap map;
  for (int r = 0; r < 3; ++r) std::copy(rows + 3 * r, rows + 3 * r + 3, map.m[r]);
  return map;
}

// The turn by `angle` about an axis.
AffineMap Turn(int axis, double angle) {
  AffineMap map = AffineMap::Identity();
  const int a = (axis + 1) % 3, b = (axis + 2) % 3;
  map.m[a][a] = map.m[b][b] = std::cos(angle);
  map.m[b][a] = std::sin(angle);
  map.m[a][b] = -map.m[b][a];
  return map;
}

// The rotation of a unit quaternion with the vector part (x, y, z) and a scalar part that is not negative.
absl::StatusOr<AffineMap> FromVersor(const double* v) {
  const double x = v[0], y = v[1], z = v[2];
  const double rest = 1 - (x * x + y * y + z * z);
  if (!(rest > -1e-6)) return Invalid("Parameters", "the versor is longer than 1");
  const double w = std::sqrt(std::max(0.0, rest));
  const double rows[9] = {1 - 2 * (y * y + z * z), 2 * (x * y - z * w),     2 * (x * z + y * w),
                          2 * (x * y + z * w),     1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
                          2 * (x * z - y * w),     2 * (y * z + x * w),     1 - 2 * (x * x + y * y)};
  return FromRows(rows);
}

AffineMap Scaled(AffineMap map, double x, double y, double z) {
  const double by[3] = {x, y, z};
  for (auto& row : map.m)
    for (int c = 0; c < 3; ++c) row[c] *= by[c];
  return map;
}

constexpr double kZero[3] = {0, 0, 0};

// Each gets the parameters and the fixed parameters, which are as many as the table says.
absl::StatusOr<AffineMap> MakeMatrix(const Numbers& p, const Numbers& f) {
  return About(FromRows(p.data()), f.data(), p.data() + 9);
}
absl::StatusOr<AffineMap> MakeEuler(const Numbers& p, const Numbers& f) {
  const AffineMap x = Turn(0, p[0]), y = Turn(1, p[1]), z = Turn(2, p[2]);
  // The fourth fixed parameter, which later versions of ITK write, chooses the order.
  const bool zyx = f.size() == 4 && f[3] != 0;
  return About(zyx ? Compose(z, Compose(y, x)) : Compose(z, Compose(x, y)), f.data(), p.data() + 3);
}
absl::StatusOr<AffineMap> MakeVersor(const Numbers& p, const Numbers& f) {
  // ITK 5 itself forgets a centre that it has read before the versor; later versions may do otherwise.
  if (f != Numbers(3, 0.0)) return Unimplemented("FixedParameters", "a VersorTransform about a centre");
  return FromVersor(p.data());
}
absl::StatusOr<AffineMap> MakeVersorRigid(const Numbers& p, const Numbers& f) {
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap rotation, FromVersor(p.data()));
  return About(rotation, f.data(), p.data() + 3);
}
absl::StatusOr<AffineMap> MakeSimilarity(const Numbers& p, const Numbers& f) {
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap rotation, FromVersor(p.data()));
  return About(Scaled(rotation, p[6], p[6], p[6]), f.data(), p.data() + 3);
}
absl::StatusOr<AffineMap> MakeScale(const Numbers& p, const Numbers& f) {
  return About(Scaled(AffineMap::Identity(), p[0], p[1], p[2]), f.data(), kZero);
}
absl::StatusOr<AffineMap> MakeTranslation(const Numbers& p, const Numbers&) {
  return About(AffineMap::Identity(), kZero, p.data());
}
absl::StatusOr<AffineMap> MakeIdentity(const Numbers&, const Numbers&) { return AffineMap::Identity(); }

struct AffineType {
  absl::string_view name;
  int64_t parameters;
  int64_t least_fixed, most_fixed;
  absl::StatusOr<AffineMap> (*make)(const Numbers& parameters, const Numbers& fixed);
};
constexpr AffineType kAffineTypes[] = {{"AffineTransform", 12, 3, 3, MakeMatrix},
                                       {"MatrixOffsetTransformBase", 12, 3, 3, MakeMatrix},
                                       {"Euler3DTransform", 6, 3, 4, MakeEuler},
                                       {"VersorTransform", 3, 3, 3, MakeVersor},
                                       {"VersorRigid3DTransform", 6, 3, 3, MakeVersorRigid},
                                       {"Similarity3DTransform", 7, 3, 3, MakeSimilarity},
                                       {"ScaleTransform", 3, 3, 3, MakeScale},
                                       {"TranslationTransform", 3, 0, 0, MakeTranslation},
                                       {"IdentityTransform", 0, 0, 0, MakeIdentity}};

bool HasFiniteTranslation(const AffineMap& map) {
  return std::isfinite(map.m[0][3]) && std::isfinite(map.m[1][3]) && std::isfinite(map.m[2][3]);
}

// ---- Types ----------------------------------------------------------------------------------------------------------

bool IsComposite(const ItkPart& part) { return absl::StartsWith(part.type, "CompositeTransform_"); }

// "AffineTransform" of "AffineTransform_double_3_3"; empty for other dimensions.
absl::string_view NameOf(const ItkPart& part) {
  absl::string_view name = part.type;
  if (absl::ConsumeSuffix(&name, "_double_3_3") || absl::ConsumeSuffix(&name, "_float_3_3")) return name;
  return {};
}
bool IsSpline(const ItkPart& part) { return NameOf(part) == "BSplineTransform"; }
bool IsField(const ItkPart& part) { return NameOf(part) == "DisplacementFieldTransform"; }

const AffineType* AffineTypeOf(const ItkPart& part) {
  const absl::string_view name = NameOf(part);
  const auto* type = std::find_if(std::begin(kAffineTypes), std::end(kAffineTypes),
                                  [&](const AffineType& t) { return t.name == name; });
  return type == std::end(kAffineTypes) ? nullptr : type;
}

// Known names alone are repeated, no free text of the file.
absl::Status CheckType(const ItkPart& part) {
  if (IsSpline(part) || IsField(part) || AffineTypeOf(part) != nullptr) return absl::OkStatus();
  for (const absl::string_view inverse :
       {"InverseBSplineTransform", "InverseDisplacementFieldTransform", "InverseThinPlateSplineKernelTransform"}) {
    if (absl::StartsWith(part.type, inverse)) {
      return Unimplemented("Transform", absl::StrCat(inverse, ", which maps from moving to fixed"));
    }
  }
  for (const absl::string_view known :
       {"BSplineDeformableTransform", "ThinPlateSplineKernelTransform", "ScaleVersor3DTransform",
        "ScaleSkewVersor3DTransform", "QuaternionRigidTransform", "Rigid3DTransform", "VelocityFieldTransform"}) {
    if (NameOf(part) == known) return Unimplemented("Transform", absl::StrCat(known, " is not supported"));
  }
  return Unimplemented("Transform",
                       "neither affine nor a displacement field nor a B-spline of order 3, in three dimensions");
}

absl::StatusOr<AffineMap> AffineOf(const ItkPart& part) {
  const AffineType& type = *AffineTypeOf(part);
  const int64_t fixed_count = std::clamp(part.fixed_count, type.least_fixed, type.most_fixed);
  INTRAWARP_ASSIGN_OR_RETURN(const Numbers parameters, part.parameters(type.parameters));
  INTRAWARP_ASSIGN_OR_RETURN(const Numbers fixed, part.fixed_parameters(fixed_count));
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap map, type.make(parameters, fixed));
  if (IsSingular(map)) return Invalid("Parameters", "the matrix is singular");
  if (!HasFiniteTranslation(map)) return Invalid("Parameters", "the translation is not finite");
  return map;
}

// ---- Grids ----------------------------------------------------------------------------------------------------------

// The fixed parameters are size, origin, spacing, then the direction row by row.
absl::StatusOr<Geometry> GridOf(const ItkPart& part, int least, absl::string_view what) {
  INTRAWARP_ASSIGN_OR_RETURN(const Numbers p, part.fixed_parameters(18));
  Geometry grid;
  for (int a = 0; a < 3; ++a) {
    if (!(p[a] >= least && p[a] <= kMaxAxis) || p[a] != std::floor(p[a])) {
      return Invalid("FixedParameters", absl::StrCat(p[a], " ", what, " along an axis"));
    }
    grid.size[a] = static_cast<int>(p[a]);
    grid.origin[a] = p[3 + a];
    grid.spacing[a] = p[6 + a];
    for (int c = 0; c < 3; ++c) grid.direction[a][c] = p[9 + 3 * a + c];
  }
  const absl::Status valid = ValidateGeometry(grid);
  if (!valid.ok()) return Invalid("FixedParameters", absl::StrCat(valid.message()));
  return grid;
}

absl::StatusOr<float> ToFloat32(double value) {
  const float narrow = static_cast<float>(value);
  if (std::isfinite(narrow)) return narrow;
  return Invalid("Parameters", "must have numbers that float32 holds");
}

// A spline's parameters are one plane of coefficients a component, a field's one vector a sample.
absl::Status TakeVectors(const ItkPart& part, bool planes, ItkTransform* transform) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t count,
                             CountSamples(transform->grid, 3, PixelType::kFloat32, kDefaultMaxVolumeBytes));
  INTRAWARP_ASSIGN_OR_RETURN(const Numbers values, part.parameters(count));
  transform->vectors.resize(values.size());
  const int64_t nodes = count / 3;
  for (int64_t i = 0; i < count; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(transform->vectors[planes ? 3 * (i % nodes) + i / nodes : i], ToFloat32(values[i]));
  }
  return absl::OkStatus();
}

absl::Status TakeGrid(const ItkPart& part, ItkTransform* transform) {
  const bool spline = IsSpline(part);
  transform->kind = spline ? ItkTransform::Kind::kControlGrid : ItkTransform::Kind::kDisplacement;
  INTRAWARP_ASSIGN_OR_RETURN(transform->grid,
                             GridOf(part, spline ? kMinNodes : 1, spline ? "control points" : "samples"));
  return TakeVectors(part, spline, transform);
}

double Cosine(Vec3d a, Vec3d b) { return Dot(a, b) / std::sqrt(Dot(a, a) * Dot(b, b)); }

// x + u(x) after `inner`: inner(x) + u(inner(x)) = inner(x + L^-1 u(inner(x))), where L is inner's linear part. The
// nodes of the new u lie where `inner` takes them to the old ones.
absl::Status PullBack(const AffineMap& inner, ItkTransform* transform) {
  const AffineMap inverse = Inverse(inner), to_physical = Compose(inverse, IndexToPhysical(transform->grid));
  Vec3d axes[3];
  for (int c = 0; c < 3; ++c) axes[c] = {to_physical.m[0][c], to_physical.m[1][c], to_physical.m[2][c]};
  for (int c = 0; c < 3; ++c) {
    if (std::abs(Cosine(axes[c], axes[(c + 1) % 3])) > kMaxShear) {
      return Unimplemented("Transform", "an affine map that shears the grid of a B-spline or field after it");
    }
  }
  const Vec3d origin{to_physical.m[0][3], to_physical.m[1][3], to_physical.m[2][3]};
  const absl::StatusOr<Geometry> grid = GeometryFromAxes(transform->grid.size, axes, origin);
  if (!grid.ok()) {
    return Invalid("Transform", absl::StrCat("the grid that the list composes to: ", grid.status().message()));
  }
  transform->grid = *grid;
  for (size_t i = 0; i + 2 < transform->vectors.size(); i += 3) {
    float* u = transform->vectors.data() + i;
    const Vec3d turned = inverse.Linear({u[0], u[1], u[2]});
    for (int c = 0; c < 3; ++c) {
      INTRAWARP_ASSIGN_OR_RETURN(u[c], ToFloat32(turned[c]));
    }
  }
  return absl::OkStatus();
}

// Leaves the transforms that the file composes. ITK composes the transforms after a CompositeTransform, which stands
// first; in any other list ITK sees transforms that have nothing to do with each other.
absl::Status TakeQueue(std::vector<ItkPart>* parts) {
  const bool composed = !parts->empty() && IsComposite(parts->front());
  if (composed) parts->erase(parts->begin());
  if (!composed && parts->size() > 1) {
    return Unimplemented("Transform", "a list without a CompositeTransform, which ITK does not compose");
  }
  if (std::any_of(parts->begin(), parts->end(), IsComposite)) {
    return Unimplemented("Transform", "a CompositeTransform that is not the first of the list");
  }
  return parts->empty() ? Unimplemented("Transform", "a list without transforms") : absl::OkStatus();
}

absl::Status CheckQueue(const std::vector<ItkPart>& parts) {
  int not_affine = 0;
  for (const ItkPart& part : parts) {
    INTRAWARP_RETURN_IF_ERROR(CheckType(part));
    not_affine += AffineTypeOf(part) == nullptr;
  }
  if (not_affine <= 1) return absl::OkStatus();
  return Unimplemented("Transform", "several B-splines or displacement fields in one list");
}

// The product of the affine maps in [begin, end), the last applied first.
absl::StatusOr<AffineMap> ProductOf(std::vector<ItkPart>::const_iterator begin,
                                    std::vector<ItkPart>::const_iterator end) {
  AffineMap product = AffineMap::Identity();
  for (auto part = begin; part != end; ++part) {
    INTRAWARP_ASSIGN_OR_RETURN(const AffineMap inner, AffineOf(*part));
    product = Compose(product, inner);
  }
  if (!IsSingular(product) && HasFiniteTranslation(product)) return product;
  return Invalid("Parameters", "the product of the matrices is singular or not finite");
}

// ---- Out ------------------------------------------------------------------------------------------------------------

// The grid as ITK takes it: four planes for one.
ItkTransform WithFourPlanes(const ItkTransform& transform) {
  ItkTransform out = transform;
  if (transform.grid.size.z != 1) return out;
  out.grid.size.z = kMinNodes;
  for (int r = 0; r < 3; ++r) out.grid.origin[r] -= 1.5 * transform.grid.spacing.z * transform.grid.direction[r][2];
  for (int plane = 1; plane < kMinNodes; ++plane) {
    out.vectors.insert(out.vectors.end(), transform.vectors.begin(), transform.vectors.end());
  }
  return out;
}

ItkPartOut AffinePart(const AffineMap& map) {
  ItkPartOut part{"AffineTransform_double_3_3", {}, {}, {0, 0, 0}};
  for (int r = 0; r < 3; ++r) part.parameters.insert(part.parameters.end(), map.m[r], map.m[r] + 3);
  for (int r = 0; r < 3; ++r) part.parameters.push_back(map.m[r][3]);
  return part;
}

std::vector<double> FixedOf(const Geometry& grid) {
  std::vector<double> fixed;
  for (int a = 0; a < 3; ++a) fixed.push_back(grid.size[a]);
  for (int a = 0; a < 3; ++a) fixed.push_back(grid.origin[a]);
  for (int a = 0; a < 3; ++a) fixed.push_back(grid.spacing[a]);
  for (const auto& row : grid.direction) fixed.insert(fixed.end(), row, row + 3);
  return fixed;
}

ItkPartOut SplinePart(const ItkTransform& original) {
  const ItkTransform transform = WithFourPlanes(original);
  ItkPartOut part{"BSplineTransform_double_3_3", {}, {}, FixedOf(transform.grid)};
  part.vectors.reserve(transform.vectors.size());
  for (size_t c = 0; c < 3; ++c)
    for (size_t i = c; i < transform.vectors.size(); i += 3) part.vectors.push_back(transform.vectors[i]);
  return part;
}

bool IsIdentity(const AffineMap& map) {
  const AffineMap identity = AffineMap::Identity();
  return std::equal(&map.m[0][0], &map.m[0][0] + 12, &identity.m[0][0]);
}

}  // namespace

absl::StatusOr<ItkTransform> ComposeItkParts(std::vector<ItkPart> parts) {
  INTRAWARP_RETURN_IF_ERROR(TakeQueue(&parts));
  INTRAWARP_RETURN_IF_ERROR(CheckQueue(parts));
  const auto grid =
      std::find_if(parts.cbegin(), parts.cend(), [](const ItkPart& p) { return AffineTypeOf(p) == nullptr; });
  ItkTransform transform;
  INTRAWARP_ASSIGN_OR_RETURN(transform.affine, ProductOf(parts.cbegin(), grid));
  if (grid == parts.cend()) return transform;
  INTRAWARP_RETURN_IF_ERROR(TakeGrid(*grid, &transform));
  if (grid + 1 == parts.cend()) return transform;
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap inner, ProductOf(grid + 1, parts.cend()));
  INTRAWARP_RETURN_IF_ERROR(PullBack(inner, &transform));
  transform.affine = Compose(transform.affine, inner);
  if (!IsSingular(transform.affine) && HasFiniteTranslation(transform.affine)) return transform;
  return Invalid("Parameters", "the product of the matrices is singular or not finite");
}

std::vector<ItkPartOut> ItkPartsOf(const ItkTransform& transform) {
  const ItkPartOut composite{"CompositeTransform_double_3_3", {}, {}, {}};
  switch (transform.kind) {
    case ItkTransform::Kind::kAffine:
      return {AffinePart(transform.affine)};
    case ItkTransform::Kind::kControlGrid:
      return {composite, AffinePart(transform.affine), SplinePart(transform)};
    case ItkTransform::Kind::kDisplacement:
      break;
  }
  const ItkPartOut field{"DisplacementFieldTransform_double_3_3", {}, transform.vectors, FixedOf(transform.grid)};
  if (IsIdentity(transform.affine)) return {field};
  return {composite, AffinePart(transform.affine), field};
}

std::vector<float> WholeDisplacement(const ItkTransform& transform) {
  std::vector<float> whole(transform.vectors.size());
  const AffineMap to_physical = IndexToPhysical(transform.grid);
  const Int3 size = transform.grid.size;
  size_t at = 0;
  for (int z = 0; z < size.z; ++z) {
    for (int y = 0; y < size.y; ++y) {
      for (int x = 0; x < size.x; ++x, at += 3) {
        const Vec3d p = to_physical({double(x), double(y), double(z)});
        const float* u = transform.vectors.data() + at;
        const Vec3d moved = transform.affine(p + Vec3d{u[0], u[1], u[2]}) - p;
        for (int c = 0; c < 3; ++c) whole[at + c] = static_cast<float>(moved[c]);
      }
    }
  }
  return whole;
}

}  // namespace intrawarp::io
