// SPDX-License-Identifier: Apache-2.0
#include "client/cli/control_grid.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "wire/convert.h"

namespace intrawarp::cli {

namespace {

absl::StatusOr<io::ItkTransform> FetchControlGrid(const std::string& transform, CommandContext& context) {
  v1::DownloadRequest request;
  request.set_name(transform);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  client::GridData grid;
  INTRAWARP_ASSIGN_OR_RETURN(const v1::FieldHeader header,
                             context.client().DownloadField(request, client::SinkInto(&grid), context.call()));
  io::ItkTransform fetched;
  fetched.kind = io::ItkTransform::Kind::kControlGrid;
  INTRAWARP_ASSIGN_OR_RETURN(fetched.affine, AffineMapFromProto(header.affine()));
  fetched.grid = grid.geometry;
  fetched.vectors = std::move(grid.values);
  return fetched;
}

// T(x) - x at the voxels of the fixed image.
absl::StatusOr<io::ItkTransform> FetchDisplacement(const std::string& transform, CommandContext& context) {
  v1::DownloadRequest request;
  request.set_name(transform);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  client::GridData field;
  INTRAWARP_RETURN_IF_ERROR(context.client().DownloadField(request, client::SinkInto(&field), context.call()).status());
  io::ItkTransform fetched;
  fetched.kind = io::ItkTransform::Kind::kDisplacement;
  fetched.grid = field.geometry;
  fetched.vectors = std::move(field.values);
  return fetched;
}

absl::StatusOr<io::ItkTransform> Fetch(const v1::Transform& stored, CommandContext& context) {
  if (stored.kind() == v1::TRANSFORM_KIND_CONTROL_GRID) return FetchControlGrid(stored.name(), context);
  if (stored.kind() != v1::TRANSFORM_KIND_AFFINE) return FetchDisplacement(stored.name(), context);
  io::ItkTransform fetched;
  INTRAWARP_ASSIGN_OR_RETURN(fetched.affine, AffineMapFromProto(stored.affine()));
  return fetched;
}

// d(x) = A(x + u(x)) - x becomes u(x).
void TakeOut(const AffineMap& affine, io::ItkTransform* t) {
  const AffineMap to_physical = IndexToPhysical(t->grid), back = Inverse(affine);
  size_t i = 0;
  for (int z = 0; z < t->grid.size.z; ++z) {
    for (int y = 0; y < t->grid.size.y; ++y) {
      for (int x = 0; x < t->grid.size.x; ++x, i += 3) {
        const Vec3d p = to_physical({1.0 * x, 1.0 * y, 1.0 * z});
        const Vec3d u = back(p + Vec3d{t->vectors[i], t->vectors[i + 1], t->vectors[i + 2]}) - p;
        for (int c = 0; c < 3; ++c) t->vectors[i + c] = static_cast<float>(u[c]);
      }
    }
  }
  t->affine = affine;
}

}  // namespace

absl::Status WriteControlGrid(const std::string& transform, const std::string& path, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const io::ItkTransform fetched, FetchControlGrid(transform, context));
  return Annotate(io::WriteItkTransform(path, fetched), path);
}

absl::Status WriteItkFile(const std::string& transform, const std::string& path, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Transform stored, context.client().GetTransform(transform, context.call()));
  INTRAWARP_ASSIGN_OR_RETURN(const io::ItkTransform fetched, Fetch(stored, context));
  return Annotate(io::WriteItkTransform(path, fetched), path);
}

absl::StatusOr<io::ItkTransform> FetchFactored(const std::string& transform, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Transform stored, context.client().GetTransform(transform, context.call()));
  INTRAWARP_ASSIGN_OR_RETURN(io::ItkTransform fetched, Fetch(stored, context));
  if (fetched.kind != io::ItkTransform::Kind::kDisplacement || !stored.has_affine()) return fetched;
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap affine, AffineMapFromProto(stored.affine()));
  TakeOut(affine, &fetched);
  return fetched;
}

}  // namespace intrawarp::cli
