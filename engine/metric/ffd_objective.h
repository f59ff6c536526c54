// SPDX-License-Identifier: Apache-2.0
// The image term of FFD registration: a metric between the fixed image and the moving image at T(p) = A(p + u(p)), u on
// a control grid, with its gradient in the control points. The dense field is never stored.
//
// A sample is a fixed voxel that the fixed mask selects and whose T(p) lies in the moving image's domain at a voxel
// (nearest) that the moving mask selects. It weighs by the product of its weights in both masks (soft_mask.h; 1 without
// soft masks), and N is the sum of the weights; MetricValue::samples is the number of samples. All metrics are
// minimised and about 1 at a bad start; each is defined in the header of its name (ssd.h, nmi.h, lncc.h, ngf.h,
// mind.h). NGF takes central differences of the warped moving image on the fixed grid.
//
// m is the linear interpolation of the moving image and its derivative that interpolant's own (engine/image/sample.h),
// so that value and gradient belong together. Gradients don't include the change of the samples and of their weights
// with u.
#ifndef INTRAWARP_ENGINE_METRIC_FFD_OBJECTIVE_H_
#define INTRAWARP_ENGINE_METRIC_FFD_OBJECTIVE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/metric/metric.h"

namespace intrawarp {

// The images, masks, grid and parameters of one level.
struct FfdObjective {
  MetricKind metric = MetricKind::kNmi;
  ConstVolumeView fixed;
  ConstVolumeView moving;
  ConstMaskView fixed_mask;
  ConstMaskView moving_mask;
  // A of T; the grid has the fixed image's direction and covers its domain (MakeControlGrid).
  AffineMap affine;
  Geometry grid;
  // SSD.
  double intensity_scale = 1;
  // NMI, LNCC and MIND: of the whole images at the finest level.
  float fixed_minimum = 0, fixed_maximum = 1, moving_minimum = 0, moving_maximum = 1;
  double fixed_stddev = 1, moving_stddev = 1;
  double lncc_sigma = 2.5;
  // NGF: eta of each image, intensity per mm.
  double fixed_edge = 0, moving_edge = 0;
};

// Evaluates one objective again and again. Its tables and scratch memory are taken from the arena of the context that
// made it, and stay taken; that arena, and the images, outlive it. Belongs to one thread at a time.
class FfdEvaluator {
 public:
  virtual ~FfdEvaluator() = default;
  // `grid`: control points (3 float32 a node, LPS mm). Writes *value and, unless `gradient` is null, every element of
  // it (per mm). All in device memory. When `skip` (may be null) holds something other than 0, nothing is written.
  // Stream-ordered, does not wait; bit-identical from run to run and for any number of cores or SMs.
  absl::Status Evaluate(const ExecContext& ctx, const float* grid, const int* skip, float* gradient,
                        MetricValue* value);

  // The same in two parts, so that other work can write `gradient` meanwhile: Measure writes *value and, where a
  // gradient is wanted, keeps what AddGradient adds to `gradient` with the same `skip` and `value`.
  virtual absl::Status Measure(const ExecContext& ctx, const float* grid, const int* skip, bool wants_gradient,
                               MetricValue* value) = 0;
  absl::Status AddGradient(const ExecContext& ctx, const int* skip, const MetricValue* value, float* gradient) {
    return Gather(ctx, skip, value, /*adds=*/true, gradient);
  }

 private:
  // Writes the gradient of the last Measure to `gradient`, or adds it.
  virtual absl::Status Gather(const ExecContext& ctx, const int* skip, const MetricValue* value, bool adds,
                              float* gradient) = 0;
};

// INVALID_ARGUMENT when a mask is not on its image's grid or the grid does not cover the fixed image. May wait for the
// stream (tables are uploaded).
absl::StatusOr<std::unique_ptr<FfdEvaluator>> MakeFfdEvaluator(const ExecContext& ctx, const FfdObjective& objective);
// Memory of `device` that MakeFfdEvaluator and the evaluations take from the arena together.
int64_t FfdEvaluatorBytes(const Device& device, MetricKind metric, const Geometry& fixed, const Geometry& moving,
                          const Geometry& grid);

INTRAWARP_DECLARE_ON_DEVICES(
    absl::StatusOr<std::unique_ptr<FfdEvaluator>> MakeFfdEvaluator(const ExecContext& ctx,
                                                                   const FfdObjective& objective);
    int64_t FfdEvaluatorBytes(MetricKind metric, const Geometry& fixed, const Geometry& moving, const Geometry& grid);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_FFD_OBJECTIVE_H_
