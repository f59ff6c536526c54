// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/registration_object.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>
#include <dcmtk/dcmdata/dcuid.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicom/attributes.h"
#include "io/dicom/instance.h"
#include "io/dicom/object.h"

namespace intrawarp::io {
namespace {

using dicom::Attribute;
using dicom::ObjectItem;

constexpr dicom::ObjectKind kSpatial = {UID_SpatialRegistrationStorage, "REG", "intrawarp registration", 9001};
constexpr dicom::ObjectKind kDeformable = {UID_DeformableSpatialRegistrationStorage, "REG", "intrawarp registration",
                                           9001};
constexpr dicom::Code kContentBased = {"125024", "DCM", "Image Content-based Alignment"};

const Attribute kSopClass = {DCM_SOPClassUID, "SOPClassUID"};
const Attribute kFrameOfReference = {DCM_FrameOfReferenceUID, "FrameOfReferenceUID"};
const Attribute kSourceFrame = {DCM_SourceFrameOfReferenceUID, "SourceFrameOfReferenceUID"};
const Attribute kMatrix = {DCM_FrameOfReferenceTransformationMatrix, "FrameOfReferenceTransformationMatrix"};

// A matrix may differ so much from an orthonormal one, or from the identity, and pass for it.
constexpr double kRigidTolerance = 1e-6;
constexpr double kIdentityTolerance = 1e-9;

// ---- Matrices -------------------------------------------------------------------------------------------------------

std::vector<double> Elements(const AffineMap& map) {
  std::vector<double> v;
  for (const auto& row : map.m) v.insert(v.end(), row, row + 4);
  for (const double last : {0.0, 0.0, 0.0, 1.0}) v.push_back(last);
  return v;
}

bool IsIdentity(const AffineMap& map) {
  const AffineMap identity = AffineMap::Identity();
  double most = 0;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) most = std::max(most, std::abs(map.m[r][c] - identity.m[r][c]));
  }
  return most <= kIdentityTolerance;
}

// The defined terms of PS3.3 C.20.2.1.2.
const char* MatrixType(const AffineMap& map) {
  double off = 0, scale = 0;
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) {
      double product = 0;
      for (const auto& row : map.m) product += row[a] * row[b];
      (a == b ? scale : off) = std::max(a == b ? scale : off, std::abs(product - (a == b ? 1 : 0)));
    }
  }
  const bool turns = Determinant(map) > 0;
  if (off <= kRigidTolerance && scale <= kRigidTolerance && turns) return "RIGID";
  return off <= kRigidTolerance && turns ? "RIGID_SCALE" : "AFFINE";
}

void AddMatrix(const AffineMap& map, ObjectItem item) {
  item.Text(DCM_FrameOfReferenceTransformationMatrixType, MatrixType(map));
  item.Numbers(DCM_FrameOfReferenceTransformationMatrix, Elements(map));
}

bool IsFinite(const AffineMap& map) {
  return std::all_of(&map.m[0][0], &map.m[0][0] + 12, [](double v) { return std::isfinite(v); });
}

// The inverse is written, too.
absl::Status CheckMatrix(const AffineMap& map) {
  if (!IsFinite(map)) return FieldError(absl::StatusCode::kInvalidArgument, "matrix", "must be finite");
  if (!IsSingular(map) && IsFinite(Inverse(map))) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "matrix", "the linear part is singular");
}

absl::Status Wrong(const Attribute& attribute, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, attribute.keyword, what);
}

absl::StatusOr<AffineMap> ReadMatrix(DcmItem& item) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> v, dicom::Numbers(item, kMatrix, "matrix", 16, 16));
  if (v.empty()) return Wrong(kMatrix, "is missing");
  AffineMap map;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) map.m[r][c] = v[4 * r + c];
  }
  const double last = std::abs(v[12]) + std::abs(v[13]) + std::abs(v[14]) + std::abs(v[15] - 1);
  if (last > kIdentityTolerance) return Wrong(kMatrix, "its last row must be 0 0 0 1");
  if (IsSingular(map)) return Wrong(kMatrix, "is singular");
  return map;
}

// ---- Sampling a control grid ----------------------------------------------------------------------------------------

constexpr int kSplineNodes = 4;

// Weights of the cubic B-spline at the four nodes around a place between the second and the third.
std::array<double, kSplineNodes> SplineWeights(double t) {
  return {(1 - t) * (1 - t) * (1 - t) / 6, (3 * t * t * t - 6 * t * t + 4) / 6,
          (-3 * t * t * t + 3 * t * t + 3 * t + 1) / 6, t * t * t / 6};
}

struct Lattice {
  std::array<int64_t, 3> size;
  std::vector<float> vectors;

  // Distance of neighbours along an axis, in vectors.
  int64_t Stride(int axis) const { return axis == 0 ? 1 : axis == 1 ? size[0] : size[0] * size[1]; }
};

// The largest second difference of the coefficients along an axis, mm. By it the second derivative of the spline is
// bounded, since the spline's own is the sum of those differences with weights of B-splines.
double LargestBend(const Lattice& c, int axis) {
  const int64_t stride = 3 * c.Stride(axis);
  double most = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(c.vectors.size()); i += 3) {
    const int64_t at = i / stride % c.size[axis];
    if (at == 0 || at == c.size[axis] - 1) continue;
    double squared = 0;
    for (int64_t k = i; k < i + 3; ++k) {
      const double bend = double{c.vectors[k - stride]} - 2.0 * c.vectors[k] + c.vectors[k + stride];
      squared += bend * bend;
    }
    most = std::max(most, squared);
  }
  return std::sqrt(most);
}

// Samples between control points, so that trilinear interpolation is off by no more than the sum over the axes of
// h^2 / 8 times the second derivative.
int64_t SamplesPerCell(double bend, int axes, double tolerance) {
  // More than any grid has would not fit into an integer.
  return static_cast<int64_t>(std::clamp(std::ceil(std::sqrt(axes * bend / (8 * tolerance))), 1.0, 1.0 * kMaxAxis));
}

// The spline along one axis, at `per_cell` samples from the second to the last but one node.
Lattice SampleAxis(const Lattice& c, int axis, int64_t per_cell) {
  const int64_t cells = c.size[axis] - (kSplineNodes - 1);
  Lattice out{c.size, {}};
  out.size[axis] = cells * per_cell + 1;
  out.vectors.resize(static_cast<size_t>(3 * out.size[0] * out.size[1] * out.size[2]));
  const int64_t stride = 3 * c.Stride(axis), out_stride = 3 * out.Stride(axis);
  const int64_t rows = static_cast<int64_t>(out.vectors.size()) / (out_stride * out.size[axis]);
  for (int64_t j = 0; j < out.size[axis]; ++j) {
    const int64_t cell = std::min(j / per_cell, cells - 1);
    const auto weights = SplineWeights(static_cast<double>(j - cell * per_cell) / static_cast<double>(per_cell));
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = c.vectors.data() + row * stride * c.size[axis] + cell * stride;
      float* to = out.vectors.data() + row * out_stride * out.size[axis] + j * out_stride;
      for (int64_t k = 0; k < out_stride; ++k) {
        double sum = 0;
        for (int n = 0; n < kSplineNodes; ++n) sum += weights[n] * from[k + n * stride];
        to[k] = static_cast<float>(sum);
      }
    }
  }
  return out;
}

absl::Status CheckControlGrid(const ItkTransform& t) {
  if (static_cast<int64_t>(t.vectors.size()) != 3 * t.grid.voxels()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "displacement", "must have three components a node");
  }
  if (!std::all_of(t.vectors.begin(), t.vectors.end(), [](float v) { return std::isfinite(v); })) {
    return FieldError(absl::StatusCode::kInvalidArgument, "displacement", "must be finite");
  }
  if (t.kind != ItkTransform::Kind::kControlGrid) return absl::OkStatus();
  for (int a = 0; a < 3; ++a) {
    if (t.grid.size[a] != 1 && t.grid.size[a] < kSplineNodes) {
      return FieldError(absl::StatusCode::kInvalidArgument, "grid",
                        "an axis of a control grid has 1 or at least 4 nodes");
    }
  }
  return absl::OkStatus();
}

// The grid of the samples: from node 1 of each axis that has a spline.
Geometry SampledGrid(const Geometry& grid, const std::array<int64_t, 3>& per_cell) {
  Geometry out = grid;
  Vec3d first;
  for (int a = 0; a < 3; ++a) {
    if (grid.size[a] == 1) continue;
    first[a] = 1;
    out.size[a] = static_cast<int>((grid.size[a] - (kSplineNodes - 1)) * per_cell[a] + 1);
    out.spacing[a] = grid.spacing[a] / static_cast<double>(per_cell[a]);
  }
  out.origin = IndexToPhysical(grid)(first);
  return out;
}

// Bytes of the samples; more than any limit where an axis is too long for a grid.
double BytesOf(const Geometry& grid, const std::array<int64_t, 3>& per_cell) {
  double bytes = 3 * sizeof(float);
  for (int a = 0; a < 3; ++a) {
    const int64_t count = grid.size[a] == 1 ? 1 : (grid.size[a] - (kSplineNodes - 1)) * per_cell[a] + 1;
    if (count > kMaxAxis) return HUGE_VAL;
    bytes *= static_cast<double>(count);
  }
  return bytes;
}

struct Sampling {
  std::array<int64_t, 3> per_cell = {1, 1, 1};
  double tolerance_mm = 0;
};

Sampling SamplingFor(const Lattice& lattice, const std::array<double, 3>& bends, double tolerance) {
  const int axes =
      static_cast<int>(std::count_if(lattice.size.begin(), lattice.size.end(), [](int64_t n) { return n > 1; }));
  Sampling sampling;
  sampling.tolerance_mm = tolerance;
  for (int a = 0; a < 3; ++a) {
    if (lattice.size[a] > 1) sampling.per_cell[a] = SamplesPerCell(bends[a], axes, tolerance);
  }
  return sampling;
}

absl::StatusOr<Sampling> ChooseSampling(const Geometry& grid, const Lattice& lattice,
                                        const DicomRegistrationOptions& options) {
  constexpr double kStep = 1.1;
  std::array<double, 3> bends = {};
  for (int a = 0; a < 3; ++a) {
    if (lattice.size[a] > 1) bends[a] = LargestBend(lattice, a);
  }
  const double least = options.tolerance_mm.value_or(kLeastToleranceMm);
  const double most = options.tolerance_mm.value_or(kMostToleranceMm);
  if (!(least > 0 && std::isfinite(least))) {
    return FieldError(absl::StatusCode::kInvalidArgument, "tolerance_mm", "must be above 0");
  }
  for (double tolerance = least; tolerance <= most; tolerance *= kStep) {
    const Sampling sampling = SamplingFor(lattice, bends, tolerance);
    if (BytesOf(grid, sampling.per_cell) <= static_cast<double>(options.max_grid_bytes)) return sampling;
  }
  return FieldError(absl::StatusCode::kResourceExhausted, "tolerance_mm",
                    absl::StrCat("a grid that fine has more than ", options.max_grid_bytes >> 20, " MiB"));
}

struct Sampled {
  ItkTransform transform;
  // The deviation of the linear interpolation from the spline; 0 where nothing was sampled.
  double tolerance_mm = 0;
};

// A control grid as displacement samples, other kinds as they are.
absl::StatusOr<Sampled> SampleControlGrid(const ItkTransform& t, const DicomRegistrationOptions& options) {
  if (t.kind != ItkTransform::Kind::kControlGrid) return Sampled{t, 0};
  Lattice lattice{{t.grid.size.x, t.grid.size.y, t.grid.size.z}, t.vectors};
  INTRAWARP_ASSIGN_OR_RETURN(const Sampling sampling, ChooseSampling(t.grid, lattice, options));
  for (int a = 0; a < 3; ++a) {
    if (lattice.size[a] > 1) lattice = SampleAxis(lattice, a, sampling.per_cell[a]);
  }
  Sampled sampled;
  sampled.tolerance_mm = sampling.tolerance_mm;
  sampled.transform.kind = ItkTransform::Kind::kDisplacement;
  sampled.transform.affine = t.affine;
  sampled.transform.grid = SampledGrid(t.grid, sampling.per_cell);
  sampled.transform.vectors = std::move(lattice.vectors);
  return sampled;
}

// ---- Writing --------------------------------------------------------------------------------------------------------

void AddSource(const DicomReference& source, ObjectItem item) {
  for (const ReferencedInstance& instance : source.instances) {
    item.AddInstance(DCM_ReferencedImageSequence, instance);
  }
}

void AddSpatialItem(const DicomReference& source, const AffineMap& to_registered, ObjectItem root) {
  ObjectItem item = root.Add(DCM_RegistrationSequence);
  item.Text(DCM_FrameOfReferenceUID, source.frame_of_reference);
  AddSource(source, item);
  ObjectItem registration = item.Add(DCM_MatrixRegistrationSequence);
  registration.AddCode(DCM_RegistrationTypeCodeSequence, kContentBased);
  AddMatrix(to_registered, registration.Add(DCM_MatrixSequence));
}

// The vectors in the order of a grid whose third axis is the cross product of the others.
std::vector<float> RightHanded(const ItkTransform& t, bool reversed) {
  if (!reversed) return t.vectors;
  const int64_t plane = 3 * int64_t{t.grid.size.x} * t.grid.size.y;
  std::vector<float> vectors(t.vectors.size());
  for (int k = 0; k < t.grid.size.z; ++k) {
    const float* from = t.vectors.data() + k * plane;
    std::copy(from, from + plane, vectors.data() + (t.grid.size.z - 1 - k) * plane);
  }
  return vectors;
}

absl::Status AddGrid(const ItkTransform& t, ObjectItem item) {
  INTRAWARP_ASSIGN_OR_RETURN(const dicom::PlaneAxes axes, dicom::AxesOf(t.grid));
  const bool reversed = Dot(axes.third, axes.normal) < 0;
  item.Numbers(DCM_ImagePositionPatient, dicom::PositionOf(t.grid, axes, reversed ? t.grid.size.z - 1 : 0));
  item.Numbers(DCM_ImageOrientationPatient, axes.orientation);
  const auto size = [&](int a) { return static_cast<uint32_t>(t.grid.size[a]); };
  item.Uint32s(DCM_GridDimensions, {size(0), size(1), size(2)});
  item.Float64s(DCM_GridResolution, {t.grid.spacing.x, t.grid.spacing.y, t.grid.spacing.z});
  item.Float32s(DCM_VectorGridData, RightHanded(t, reversed));
  return absl::OkStatus();
}

absl::Status AddDeformableItem(const DicomReference& moving, const Sampled& sampled, ObjectItem root) {
  const ItkTransform& t = sampled.transform;
  ObjectItem item = root.Add(DCM_DeformableRegistrationSequence);
  item.Text(DCM_SourceFrameOfReferenceUID, moving.frame_of_reference);
  AddSource(moving, item);
  if (sampled.tolerance_mm > 0) {
    item.Text(DCM_FrameOfReferenceTransformationComment,
              absl::StrFormat("Linear interpolation is within %.2g mm of a B-spline", sampled.tolerance_mm));
  }
  item.AddCode(DCM_RegistrationTypeCodeSequence, kContentBased);
  AddMatrix(AffineMap::Identity(), item.Add(DCM_PreDeformationMatrixRegistrationSequence));
  AddMatrix(t.affine, item.Add(DCM_PostDeformationMatrixRegistrationSequence));
  return AddGrid(t, item.Add(DCM_DeformableRegistrationGridSequence));
}

// ---- Reading --------------------------------------------------------------------------------------------------------

absl::Status Unsupported(absl::string_view keyword, absl::string_view what) {
  return FieldError(absl::StatusCode::kUnimplemented, keyword, what);
}

struct SpatialItem {
  bool in_registered_frame = false;
  AffineMap to_registered;
};

absl::StatusOr<SpatialItem> ReadSpatialItem(DcmItem& item, const std::string& registered) {
  SpatialItem result;
  result.in_registered_frame = dicom::Text(item, kFrameOfReference) == registered;
  DcmItem* registration = dicom::FirstItem(&item, DCM_MatrixRegistrationSequence);
  if (registration == nullptr) {
    return FieldError(absl::StatusCode::kInvalidArgument, "MatrixRegistrationSequence", "is missing");
  }
  const std::vector<DcmItem*> matrices = dicom::Items(*registration, DCM_MatrixSequence);
  if (matrices.empty()) return FieldError(absl::StatusCode::kInvalidArgument, "MatrixSequence", "is missing");
  if (matrices.size() > 1) return Unsupported("MatrixSequence", "products of matrices are not supported");
  INTRAWARP_ASSIGN_OR_RETURN(result.to_registered, ReadMatrix(*matrices[0]));
  return result;
}

// Which of two items is the fixed image: the only one in the registered frame, or else the only one that stays.
absl::StatusOr<size_t> FixedOf(const std::vector<SpatialItem>& items) {
  if (items[0].in_registered_frame != items[1].in_registered_frame) return items[0].in_registered_frame ? 0 : 1;
  const bool stays[2] = {IsIdentity(items[0].to_registered), IsIdentity(items[1].to_registered)};
  if (stays[0] || stays[1]) return stays[0] ? 0 : 1;
  return Unsupported("RegistrationSequence", "nothing tells the fixed images from the moving ones");
}

absl::StatusOr<ItkTransform> ReadSpatial(DcmItem& data, const std::string& registered) {
  std::vector<SpatialItem> items;
  for (DcmItem* item : dicom::Items(data, DCM_RegistrationSequence)) {
    if (items.size() == 2) return Unsupported("RegistrationSequence", "more than two items are not supported");
    INTRAWARP_ASSIGN_OR_RETURN(SpatialItem read, ReadSpatialItem(*item, registered));
    items.push_back(read);
  }
  if (items.empty()) return FieldError(absl::StatusCode::kInvalidArgument, "RegistrationSequence", "is missing");
  ItkTransform result;
  if (items.size() == 1) {
    result.affine = Inverse(items[0].to_registered);
    return result;
  }
  INTRAWARP_ASSIGN_OR_RETURN(const size_t fixed, FixedOf(items));
  result.affine = Compose(Inverse(items[1 - fixed].to_registered), items[fixed].to_registered);
  return result;
}

// The identity where the sequence is missing.
absl::StatusOr<AffineMap> ReadDeformationMatrix(DcmItem& item, const DcmTagKey& sequence) {
  DcmItem* matrix = dicom::FirstItem(&item, sequence);
  if (matrix == nullptr) return AffineMap::Identity();
  return ReadMatrix(*matrix);
}

absl::StatusOr<Geometry> ReadGridGeometry(DcmItem& item) {
  Geometry grid;
  const Attribute kSize = {DCM_GridDimensions, "GridDimensions"};
  const Attribute kSpacing = {DCM_GridResolution, "GridResolution"};
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> size, dicom::Numbers(item, kSize, "grid", 3, 3));
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> spacing, dicom::Numbers(item, kSpacing, "grid", 3, 3));
  if (size.empty()) return Wrong(kSize, "is missing");
  if (spacing.empty()) return Wrong(kSpacing, "is missing");
  for (int a = 0; a < 3; ++a) {
    if (!(size[a] >= 1 && size[a] <= kMaxAxis)) return Wrong(kSize, absl::StrCat("must be from 1 to ", kMaxAxis));
    if (!(spacing[a] >= 1e-6 && spacing[a] <= 1e6)) return Wrong(kSpacing, "must be from 1e-6 to 1e6 mm");
    grid.size[a] = static_cast<int>(size[a]);
    grid.spacing[a] = spacing[a];
  }
  INTRAWARP_ASSIGN_OR_RETURN(const dicom::Frame plane, dicom::ReadPlane(item));
  grid.origin = plane.position;
  const Vec3d axes[3] = {plane.row_axis, plane.column_axis, dicom::Cross(plane.row_axis, plane.column_axis)};
  for (int r = 0; r < 3; ++r) {
    for (int a = 0; a < 3; ++a) grid.direction[r][a] = axes[a][r];
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(grid));
  return grid;
}

absl::StatusOr<absl::Span<const float>> ReadVectors(DcmItem& item, const Geometry& grid) {
  const Attribute kVectors = {DCM_VectorGridData, "VectorGridData"};
  const Float32* values = nullptr;
  unsigned long count = 0;
  if (item.findAndGetFloat32Array(kVectors.tag, values, &count).bad() || values == nullptr) {
    return Wrong(kVectors, "is missing");
  }
  if (static_cast<int64_t>(count) != 3 * grid.voxels()) {
    return Wrong(kVectors, "must have three values a voxel of its grid");
  }
  const absl::Span<const float> vectors(values, count);
  if (!std::all_of(vectors.begin(), vectors.end(), [](float v) { return std::isfinite(v); })) {
    return Wrong(kVectors, "is undefined (NaN) in places");
  }
  return vectors;
}

// source = Post(Pre x + d(x)) = Post(Pre(x + L d(x))), with L the inverse of the linear part of Pre.
absl::StatusOr<ItkTransform> ReadDeformableItem(DcmItem& item) {
  ItkTransform t;
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap pre,
                             ReadDeformationMatrix(item, DCM_PreDeformationMatrixRegistrationSequence));
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap post,
                             ReadDeformationMatrix(item, DCM_PostDeformationMatrixRegistrationSequence));
  t.affine = Compose(post, pre);
  DcmItem* grid = dicom::FirstItem(&item, DCM_DeformableRegistrationGridSequence);
  if (grid == nullptr) return t;
  t.kind = ItkTransform::Kind::kDisplacement;
  INTRAWARP_ASSIGN_OR_RETURN(t.grid, ReadGridGeometry(*grid));
  INTRAWARP_ASSIGN_OR_RETURN(const absl::Span<const float> vectors, ReadVectors(*grid, t.grid));
  t.vectors.assign(vectors.begin(), vectors.end());
  if (IsIdentity(pre)) return t;
  const AffineMap back = Inverse(pre);
  for (size_t i = 0; i < t.vectors.size(); i += 3) {
    const Vec3d u = back.Linear({t.vectors[i], t.vectors[i + 1], t.vectors[i + 2]});
    for (int c = 0; c < 3; ++c) t.vectors[i + c] = static_cast<float>(u[c]);
  }
  return t;
}

bool ChangesNothing(const ItkTransform& t) { return t.kind == ItkTransform::Kind::kAffine && IsIdentity(t.affine); }

// One item moves something; the others say which images stay. The registered frame itself is not moved towards another.
absl::StatusOr<ItkTransform> ReadDeformable(DcmItem& data, const std::string& registered) {
  std::optional<ItkTransform> moving;
  bool moves_registered = false, other_stays = false;
  const std::vector<DcmItem*> items = dicom::Items(data, DCM_DeformableRegistrationSequence);
  if (items.empty()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "DeformableRegistrationSequence", "is missing");
  }
  for (DcmItem* item : items) {
    const std::string source = dicom::Text(*item, kSourceFrame);
    if (source.empty()) return Wrong(kSourceFrame, "is missing");
    INTRAWARP_ASSIGN_OR_RETURN(ItkTransform t, ReadDeformableItem(*item));
    if (ChangesNothing(t)) {
      other_stays = other_stays || source != registered;
      continue;
    }
    if (moving) {
      return Unsupported("DeformableRegistrationSequence", "several items that change something are not supported");
    }
    moves_registered = source == registered;
    moving = std::move(t);
  }
  if (moves_registered && other_stays) {
    return Unsupported("DeformableRegistrationSequence", "the images of the object's own frame of reference move");
  }
  return moving ? *std::move(moving) : ItkTransform();
}

}  // namespace

absl::Status WriteDicomRegistration(const std::string& path, const ItkTransform& transform, const DicomReference& fixed,
                                    const DicomReference& moving, const DicomRegistrationOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckSamePatient(fixed, moving));
  INTRAWARP_RETURN_IF_ERROR(CheckMatrix(transform.affine));
  const bool affine = transform.kind == ItkTransform::Kind::kAffine;
  const DicomStamp& stamp = options.stamp;
  dicom::Object object(affine ? kSpatial : kDeformable, fixed, stamp, stamp.new_uid(), stamp.new_uid(), 1);
  object.AddFrameOfReference(fixed);
  object.root().Text(DCM_Laterality, "");  // type 2C
  object.AddContentIdentification("REGISTRATION", "Fixed and moving images aligned by intrawarp", stamp);
  object.AddCommonReferences({&fixed, &moving}, fixed);
  if (affine) {
    AddSpatialItem(fixed, AffineMap::Identity(), object.root());
    AddSpatialItem(moving, Inverse(transform.affine), object.root());
    return object.Save(path);
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(transform.grid));
  INTRAWARP_RETURN_IF_ERROR(CheckControlGrid(transform));
  INTRAWARP_ASSIGN_OR_RETURN(const Sampled sampled, SampleControlGrid(transform, options));
  INTRAWARP_RETURN_IF_ERROR(AddDeformableItem(moving, sampled, object.root()));
  return object.Save(path);
}

absl::StatusOr<ItkTransform> ReadDicomRegistration(const std::string& path, int64_t max_bytes) {
  DicomLimits limits;
  limits.max_file_bytes = max_bytes;
  INTRAWARP_ASSIGN_OR_RETURN(dicom::Dataset dataset, dicom::ReadDataset(path, limits));
  INTRAWARP_RETURN_IF_ERROR(dataset.status);
  const std::string sop_class = dicom::Text(*dataset.data, kSopClass);
  const std::string registered = dicom::Text(*dataset.data, kFrameOfReference);
  const bool spatial = sop_class == UID_SpatialRegistrationStorage;
  if (!spatial && sop_class != UID_DeformableSpatialRegistrationStorage) {
    return Wrong(kSopClass, "the file is neither a Spatial Registration nor a Deformable Spatial Registration");
  }
  if (registered.empty()) return Wrong(kFrameOfReference, "is missing");
  return spatial ? ReadSpatial(*dataset.data, registered) : ReadDeformable(*dataset.data, registered);
}

}  // namespace intrawarp::io
