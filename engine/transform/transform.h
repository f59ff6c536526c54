// SPDX-License-Identifier: Apache-2.0
// Transform: maps points of the fixed image to points of the moving image, LPS mm: T(x) = A(x + u(x)).
//
// A is affine; u, when there is one, is a dense displacement on a grid (linear between its nodes, 0 outside its
// domain), a cubic B-spline on a control grid (control_grid.h), or x + u(x) = exp(v)(x) with a stationary velocity v
// (velocity.h). Immutable once made, and then safe to read from several threads and streams; copies share their memory,
// which is freed with the last of them.
#ifndef INTRAWARP_ENGINE_TRANSFORM_TRANSFORM_H_
#define INTRAWARP_ENGINE_TRANSFORM_TRANSFORM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/image/warp.h"

namespace intrawarp {

// A stationary velocity v with what is made of it, on one grid: 3 float32 per voxel each, LPS mm, all finite.
struct VelocityFields {
  Buffer velocity;
  // exp(v)(x) - x and exp(-v)(x) - x.
  Buffer forward;
  Buffer backward;
};

class Transform {
 public:
  explicit Transform(const AffineMap& affine, std::optional<Geometry> domain = std::nullopt)
      : affine_(affine), domain_(domain) {}
  // `memory` holds 3 float32 per voxel of `domain`, all finite.
  Transform(Buffer memory, const Geometry& domain)
      : affine_(AffineMap::Identity()), domain_(domain), displacement_(std::make_shared<Buffer>(std::move(memory))) {}
  // `memory` holds 3 float32 per node of `grid`, all finite; `domain` is the fixed image's grid.
  Transform(const AffineMap& affine, Buffer memory, const Geometry& grid, std::optional<Geometry> domain)
      : affine_(affine), domain_(domain), grid_(grid), control_points_(std::make_shared<Buffer>(std::move(memory))) {}
  // T = A(exp(v)(x)), T^-1 = exp(-v)(A^-1(y)); the fields lie on `domain`. MakeVelocityTransform (velocity.h) makes
  // them.
  Transform(const AffineMap& affine, VelocityFields fields, const Geometry& domain)
      : affine_(affine),
        domain_(domain),
        displacement_(std::make_shared<Buffer>(std::move(fields.forward))),
        velocity_(std::make_shared<Buffer>(std::move(fields.velocity))),
        backward_(std::make_shared<Buffer>(std::move(fields.backward))) {}

  const AffineMap& affine() const { return affine_; }
  // The fixed image's grid, where it is known.
  const std::optional<Geometry>& domain() const { return domain_; }
  // u is dense: given as such, or made of a velocity.
  bool has_displacement() const { return displacement_ != nullptr; }
  // Only when has_displacement().
  ConstFieldView displacement() const { return {displacement_->as<float>(), *domain_}; }
  bool has_control_grid() const { return control_points_ != nullptr; }
  // Only when has_control_grid().
  ConstFieldView control_grid() const { return {control_points_->as<float>(), *grid_}; }
  bool has_velocity() const { return velocity_ != nullptr; }
  // Only when has_velocity(): v, and exp(-v)(x) - x.
  ConstFieldView velocity() const { return {velocity_->as<float>(), *domain_}; }
  ConstFieldView backward() const { return {backward_->as<float>(), *domain_}; }
  bool is_affine() const { return !has_displacement() && !has_control_grid(); }
  int64_t resident_bytes() const {
    return Bytes(displacement_) + Bytes(control_points_) + Bytes(velocity_) + Bytes(backward_);
  }

 private:
  static int64_t Bytes(const std::shared_ptr<const Buffer>& memory) {
    return memory == nullptr ? 0 : static_cast<int64_t>(memory->bytes());
  }

  AffineMap affine_;
  std::optional<Geometry> domain_;
  std::shared_ptr<const Buffer> displacement_;
  std::optional<Geometry> grid_;
  std::shared_ptr<const Buffer> control_points_;
  std::shared_ptr<const Buffer> velocity_;
  std::shared_ptr<const Buffer> backward_;
};

// The dense field T(p) - p of the voxels [first, first + count) of `grid` in memory order (so that a field can be made
// and sent piece by piece), 3 float32 each. Stream-ordered.
absl::Status EvaluateField(const ExecContext& ctx, const Transform& transform, const Geometry& grid, int64_t first,
                           int64_t count, float* out);

// out(p) = moving(T(p)), or moving(T^-1(p)); `fill` where there is no source or no inverse. Stream-ordered. Workspace
// for kCubic: CubicWarpWorkspaceBytes(moving.geometry).
absl::Status WarpVolume(const ExecContext& ctx, const Transform& transform, bool inverse, ConstVolumeView moving,
                        Interpolation interpolation, float fill, VolumeView out);

// Maps points in place: x y z of each, LPS mm, in host memory. Through the inverse of a velocity's transform by its
// negative; of another displacement by fixed-point iteration to 1e-4 mm, where a point that does not converge (T is not
// invertible there) becomes NaN NaN NaN.
// FAILED_PRECONDITION for the inverse of a singular matrix. Waits for the stream.
absl::Status MapPoints(const ExecContext& ctx, const Transform& transform, bool inverse, absl::Span<double> points);
size_t MapPointsWorkspaceBytes(const Transform& transform, int64_t points);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_TRANSFORM_H_
