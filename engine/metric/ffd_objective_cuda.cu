// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/shared_memory.cuh"
#include "engine/metric/ffd_objective.cuh"
#include "engine/metric/ffd_plan.h"
#include "engine/metric/mind.h"
#include "engine/metric/ssd.h"
#include "engine/metric/voxel_gradient.h"

namespace intrawarp::cuda {
namespace {

// The places of each control point's partial sums: the tiles (x, y) or runs (z) that hold it, first and last, and the
// first control point of each tile or run.
struct GatherTables {
  const int2* holders[3];
  const int* first[3];
};

// A thread sums one component of one control point.
constexpr int kGatherNodes = 64;

// gradient = factor * linear^T * (sum of the partial sums), or += with `adds`, with factor / N for the weight N of an
// evaluation's samples.
__global__ void __launch_bounds__(3 * kGatherNodes)
    GatherKernel(const FfdArgs a, GatherTables tables, bool divide_by_weight, bool adds, float* gradient) {
  if (a.skip != nullptr && *a.skip != 0) return;
  __shared__ float sums[3][kGatherNodes];
  const FfdTiles& t = a.tiles;
  const int nodes = a.nodes.x * a.nodes.y * a.nodes.z, first = blockIdx.x * kGatherNodes;
  const int i = first + static_cast<int>(threadIdx.x), component = threadIdx.y;
  float sum = 0;
  if (i < nodes) {
    const int x = i % a.nodes.x, rest = i / a.nodes.x, y = rest % a.nodes.y, z = rest / a.nodes.y;
    const int2 hx = tables.holders[0][x], hy = tables.holders[1][y], hz = tables.holders[2][z];
    const float* const partials = a.partials + component * t.rows * t.columns;
    for (int run = hz.x; run <= hz.y; ++run) {
      const int plane = z - tables.first[2][run];
      for (int ty = hy.x; ty <= hy.y; ++ty) {
        const int row = y - tables.first[1][ty];
#pragma unroll 2
        for (int tx = hx.x; tx <= hx.y; ++tx) {
          const int column = x - tables.first[0][tx];
          const size_t patch = ((static_cast<size_t>(run) * t.planes + plane) * t.tiles_y + ty) * t.tiles_x + tx;
          sum += partials[patch * t.patch() + row * t.columns + column];
        }
      }
    }
  }
  sums[component][threadIdx.x] = sum;
  __syncthreads();
  const int element = component * kGatherNodes + static_cast<int>(threadIdx.x);
  const int node = element / 3, axis = element % 3;
  if (node >= nodes - first) return;
  double factor = 1;
  if (divide_by_weight) factor = SsdGradientFactor(a.scale, *a.total_weight);
  const Vec3f g = static_cast<float>(factor) * a.linear.LinearTransposed({sums[0][node], sums[1][node], sums[2][node]});
  const float own = axis == 0 ? g.x : axis == 1 ? g.y : g.z;
  float* const out = gradient + 3 * static_cast<size_t>(first) + element;
  *out = adds ? *out + own : own;
}

// ---- Plans ----

int CeilDivide(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// The most control points, four taps each, that any `tile` voxels see.
int MostNodes(const AxisWeights& axis, int tile) {
  const int n = static_cast<int>(axis.base.size());
  int most = 0;
  for (int i = 0; i < n; i += tile) most = std::max(most, axis.base[std::min(n, i + tile) - 1] - axis.base[i]);
  return most + 4;
}

// The pieces that a kernel's blocks take at once on a GPU of the size we tune for, and the waves of them that balance a
// large image.
struct Waves {
  int pieces, many;
};

// Each piece pays for four planes of control points before its first voxel and after its last. So pieces are as long as
// leaves one wave of them, or, where those would be few a column of tiles, many waves.
FfdTiles MakeTiles(const FfdPlan& plan, Int3 size, int tile_y, Waves waves) {
  constexpr int kMinRun = 7, kFewRuns = 4;
  FfdTiles t;
  t.tiles_x = CeilDivide(size.x, kFfdTileX);
  t.tiles_y = CeilDivide(size.y, tile_y);
  const int64_t tiles = int64_t{t.tiles_x} * t.tiles_y;
  int64_t wanted = waves.pieces / tiles;
  if (wanted < kFewRuns) wanted = waves.many * waves.pieces / tiles;
  const int runs =
      static_cast<int>(std::clamp<int64_t>(wanted, CeilDivide(size.z, kMaxRun), CeilDivide(size.z, kMinRun)));
  t.run = CeilDivide(size.z, runs);
  t.runs = CeilDivide(size.z, t.run);
  t.columns = MostNodes(plan.axis[0], kFfdTileX);
  t.rows = MostNodes(plan.axis[1], tile_y);
  t.planes = MostNodes(plan.axis[2], t.run);
  return t;
}

struct Holders {
  std::vector<int2> holders;
  std::vector<int> first;
};
Holders MakeHolders(const AxisWeights& axis, int tile) {
  Holders h;
  const int n = static_cast<int>(axis.base.size());
  h.holders.assign(axis.nodes, int2{0, -1});
  for (int i = 0; i < n; i += tile) {
    const int index = i / tile, last = axis.base[std::min(n, i + tile) - 1] + axis.taps - 1;
    h.first.push_back(axis.base[i]);
    for (int k = axis.base[i]; k <= last; ++k) {
      if (h.holders[k].y < 0) h.holders[k].x = index;
      h.holders[k].y = index;
    }
  }
  return h;
}

// An evaluator's memory in elements, in one order for the estimate and for the allocation.
struct Sizes {
  size_t partials = 0, block_sums = 0, bins = 0, histogram = 0, derivative = 0, warped = 0;
  // With soft masks only.
  size_t weights = 0;

  Sizes(MetricKind metric, Int3 size, const FfdTiles& t) {
    const size_t voxels = static_cast<size_t>(size.x) * size.y * size.z;
    partials = static_cast<size_t>(t.patch()) * t.planes * t.pieces();
    if (metric == MetricKind::kSsd || metric == MetricKind::kMind) block_sums = kSampleSums * t.pieces();
    if (metric == MetricKind::kNmi) {
      bins = voxels;
      histogram = derivative = kNmiBins * kNmiBins;
    }
    if (TraitsOf(metric).needs_neighborhood) warped = voxels;
    if (metric == MetricKind::kNgf) weights = voxels;
  }
};

constexpr Waves kPassWaves = {396, 3}, kCountWaves = {264, 4};

FfdTiles PassTiles(const FfdPlan& plan, Int3 size) { return MakeTiles(plan, size, kPassTileY, kPassWaves); }

template <int kTileY, bool kGradient>
size_t SharedBytes(const FfdTiles& tiles) {
  return sizeof(float) * FfdShared<kTileY, kGradient>(tiles).total;
}

// ---- The evaluator ----

class CudaFfdEvaluator final : public FfdEvaluator {
 public:
  static absl::StatusOr<std::unique_ptr<FfdEvaluator>> Make(const ExecContext& ctx, const FfdObjective& objective) {
    std::unique_ptr<CudaFfdEvaluator> evaluator(new CudaFfdEvaluator(objective));
    INTRAWARP_RETURN_IF_ERROR(evaluator->SetUp(ctx));
    return std::unique_ptr<FfdEvaluator>(std::move(evaluator));
  }

  absl::Status Measure(const ExecContext& ctx, const float* grid, const int* skip, bool wants_gradient,
                       MetricValue* value) override {
    FfdArgs args = args_;
    args.grid = grid;
    args.skip = skip;
    args.value = value;
    switch (objective_.metric) {
      case MetricKind::kSsd:
        return wants_gradient ? Pass<FfdPass::kSsd>(ctx, args) : Pass<FfdPass::kSsdValue>(ctx, args);
      case MetricKind::kNmi:
        INTRAWARP_RETURN_IF_ERROR(Count(ctx, args));
        return wants_gradient ? Pass<FfdPass::kNmi>(ctx, args) : absl::OkStatus();
      case MetricKind::kLncc:
      case MetricKind::kNgf:
        INTRAWARP_RETURN_IF_ERROR(Pass<FfdPass::kWarp>(ctx, args));
        INTRAWARP_RETURN_IF_ERROR(EvaluateVoxelGradient(ctx, objective_, {args_.warped, args_.warped_weights}, skip,
                                                        wants_gradient ? voxel_gradient_ : nullptr, value));
        return wants_gradient ? Pass<FfdPass::kVoxelGradient>(ctx, args) : absl::OkStatus();
      case MetricKind::kMind:
        return wants_gradient ? Pass<FfdPass::kMind>(ctx, args) : Pass<FfdPass::kMindValue>(ctx, args);
    }
    return absl::OkStatus();
  }

 private:
  explicit CudaFfdEvaluator(const FfdObjective& objective) : objective_(objective) {}

  template <typename T>
  absl::Status Upload(const ExecContext& ctx, const std::vector<T>& values, const T** out) {
    INTRAWARP_ASSIGN_OR_RETURN(T * p, ctx.arena().Allocate<T>(values.size()));
    *out = p;
    return ctx.device().Copy(p, values.data(), values.size() * sizeof(T), ctx.stream());
  }

  absl::Status SetUp(const ExecContext& ctx) {
    INTRAWARP_ASSIGN_OR_RETURN(const FfdPlan plan, MakeFfdPlan(objective_));
    const FfdObjective& o = objective_;
    args_.fixed = o.fixed.data;
    args_.moving = o.moving.data;
    args_.fixed_mask = o.fixed_mask.data;
    args_.moving_mask = o.moving_mask.data;
    args_.fixed_weight = o.fixed_mask.weight_per_unit;
    args_.moving_weight = o.moving_mask.weight_per_unit;
    args_.size = o.fixed.geometry.size;
    args_.moving_size = o.moving.geometry.size;
    args_.nodes = o.grid.size;
    args_.to_moving = plan.to_moving;
    args_.linear = plan.displacement_to_moving.Cast<float>();
    args_.scale = o.intensity_scale * o.intensity_scale;
    args_.moving_bins = NmiMovingScale(o.moving_minimum, o.moving_maximum);
    // Offsets into the moving image are 32 bits wide.
    if (o.moving.geometry.voxels() >= int64_t{1} << 32) {
      return absl::InvalidArgumentError(
          absl::StrCat("moving: ", SizeString(o.moving.geometry), " voxels are too many"));
    }
    if (o.grid.voxels() >= int64_t{1} << 31) {
      return absl::InvalidArgumentError(absl::StrCat("grid: ", SizeString(o.grid), " control points are too many"));
    }
    args_.tiles = PassTiles(plan, args_.size);
    INTRAWARP_RETURN_IF_ERROR(UploadTables(ctx, plan));
    INTRAWARP_RETURN_IF_ERROR(AllocateScratch(ctx));
    if (o.metric == MetricKind::kNmi) INTRAWARP_RETURN_IF_ERROR(SetUpNmi(ctx, plan));
    if (o.metric == MetricKind::kMind) INTRAWARP_RETURN_IF_ERROR(SetUpMind(ctx));
    // The tables' sources end with this call.
    return ctx.device().Synchronize(ctx.stream());
  }

  absl::Status UploadTables(const ExecContext& ctx, const FfdPlan& plan) {
    const int tiles[3] = {kFfdTileX, kPassTileY, args_.tiles.run};
    for (int a = 0; a < 3; ++a) {
      const AxisWeights& axis = plan.axis[a];
      const float* weights = nullptr;
      INTRAWARP_RETURN_IF_ERROR(Upload(ctx, axis.base, &args_.base[a]));
      INTRAWARP_RETURN_IF_ERROR(Upload(ctx, axis.weights, &weights));
      args_.weights[a] = reinterpret_cast<const float4*>(weights);
      const Holders h = MakeHolders(axis, tiles[a]);
      INTRAWARP_RETURN_IF_ERROR(Upload(ctx, h.holders, &gather_.holders[a]));
      INTRAWARP_RETURN_IF_ERROR(Upload(ctx, h.first, &gather_.first[a]));
      // The next axis' vectors are others, but these end here.
      INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
    }
    return absl::OkStatus();
  }

  absl::Status AllocateScratch(const ExecContext& ctx) {
    const Sizes sizes(objective_.metric, args_.size, args_.tiles);
    Arena& arena = ctx.arena();
    INTRAWARP_ASSIGN_OR_RETURN(args_.partials, arena.Allocate<float>(sizes.partials));
    INTRAWARP_ASSIGN_OR_RETURN(args_.block_sums, arena.Allocate<double>(sizes.block_sums));
    INTRAWARP_ASSIGN_OR_RETURN(args_.ticket, arena.Allocate<unsigned>(1));
    INTRAWARP_ASSIGN_OR_RETURN(args_.total_weight, arena.Allocate<double>(1));
    INTRAWARP_ASSIGN_OR_RETURN(bins_, arena.Allocate<uint8_t>(sizes.bins));
    INTRAWARP_ASSIGN_OR_RETURN(args_.histogram, arena.Allocate<unsigned long long>(sizes.histogram));
    INTRAWARP_ASSIGN_OR_RETURN(derivative_, arena.Allocate<float>(sizes.derivative));
    INTRAWARP_ASSIGN_OR_RETURN(args_.next_piece, arena.Allocate<unsigned>(1));
    INTRAWARP_ASSIGN_OR_RETURN(args_.samples, arena.Allocate<unsigned long long>(1));
    INTRAWARP_ASSIGN_OR_RETURN(args_.warped, arena.Allocate<float>(sizes.warped));
    INTRAWARP_ASSIGN_OR_RETURN(voxel_gradient_, arena.Allocate<float>(sizes.warped));
    args_.fixed_bins = bins_;
    args_.nmi_derivative = derivative_;
    args_.voxel_gradient = voxel_gradient_;
    if (masking() == Masking::kWeighted) {
      // LNCC takes the weights out of the image that its voxel gradient goes to.
      args_.warped_weights = voxel_gradient_;
      if (sizes.weights > 0) {
        INTRAWARP_ASSIGN_OR_RETURN(args_.warped_weights, arena.Allocate<float>(sizes.weights));
      }
    }
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(args_.samples, 0, sizeof(*args_.samples), ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(args_.ticket, 0, sizeof(unsigned), ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(args_.next_piece, 0, sizeof(unsigned), ctx.stream()));
    return ctx.device().Fill(args_.histogram, 0, sizes.histogram * sizeof(*args_.histogram), ctx.stream());
  }

  absl::Status SetUpNmi(const ExecContext& ctx, const FfdPlan& plan) {
    count_tiles_ = MakeTiles(plan, args_.size, kCountTileY, kCountWaves);
    int device = 0, processors = 0;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    int shared = 0;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    few_copies_ = CountSharedBytes<4>(count_tiles_) > static_cast<size_t>(shared);
    // Integer sums are the same for any number of blocks and copies.
    count_blocks_ = std::min(count_tiles_.pieces(), 2 * processors);
    const size_t voxels = objective_.fixed.geometry.voxels();
    FixedBinsKernel<<<CeilDivide(voxels, 256), 256, 0, CudaStream(ctx)>>>(
        args_.fixed, args_.fixed_mask, NmiFixedScale(objective_.fixed_minimum, objective_.fixed_maximum), voxels,
        bins_);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  }

  absl::Status SetUpMind(const ExecContext& ctx) {
    const FfdObjective& o = objective_;
    INTRAWARP_ASSIGN_OR_RETURN(args_.fixed_descriptors, DescribeImage(ctx, o.fixed, o.fixed_mask, o.fixed_stddev));
    INTRAWARP_ASSIGN_OR_RETURN(args_.moving_descriptors,
                               DescribeImage(ctx, o.moving, o.moving_mask, o.moving_stddev,
                                             OrderOfChannels(o.fixed.geometry, o.moving.geometry, o.affine)));
    args_.scale = 1.0 / (kChannelSteps * kChannelSteps);
    return absl::OkStatus();
  }

  Masking masking() const { return MaskingOf(objective_.fixed_mask, objective_.moving_mask); }

  template <FfdPass kPass, Masking kMasking>
  absl::Status Launch(const ExecContext& ctx, const FfdArgs& args) {
    const size_t table = kPass == FfdPass::kNmi ? sizeof(float) * kNmiBins * kNmiBins : 0;
    const size_t bytes = table + SharedBytes<kPassTileY, HasGradient(kPass)>(args.tiles);
    INTRAWARP_RETURN_IF_ERROR(AllowSharedMemory(FfdKernel<kPass, kMasking>, bytes));
    FfdKernel<kPass, kMasking><<<args.tiles.pieces(), kFfdTileX * kPassTileY, bytes, CudaStream(ctx)>>>(args);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  }
  template <FfdPass kPass>
  absl::Status Pass(const ExecContext& ctx, const FfdArgs& args) {
    if (masking() == Masking::kNone) return Launch<kPass, Masking::kNone>(ctx, args);
    // The voxel gradient is weighted already.
    if constexpr (kPass != FfdPass::kVoxelGradient) {
      if (masking() == Masking::kWeighted) return Launch<kPass, Masking::kWeighted>(ctx, args);
    }
    return Launch<kPass, Masking::kBinary>(ctx, args);
  }

  template <int kCopies>
  static size_t CountSharedBytes(const FfdTiles& tiles) {
    return sizeof(unsigned) * HistogramWords<kCopies>() + SharedBytes<kCountTileY, false>(tiles);
  }
  template <int kCopies, Masking kMasking>
  absl::Status LaunchCount(const ExecContext& ctx, const FfdArgs& args) {
    const size_t bytes = CountSharedBytes<kCopies>(args.tiles);
    INTRAWARP_RETURN_IF_ERROR(AllowSharedMemory(NmiCountKernel<kCopies, kMasking>, bytes));
    NmiCountKernel<kCopies, kMasking><<<count_blocks_, kFfdTileX * kCountTileY, bytes, CudaStream(ctx)>>>(args);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  }
  template <int kCopies>
  absl::Status CountCopies(const ExecContext& ctx, const FfdArgs& args) {
    if (masking() == Masking::kNone) return LaunchCount<kCopies, Masking::kNone>(ctx, args);
    if (masking() == Masking::kWeighted) return LaunchCount<kCopies, Masking::kWeighted>(ctx, args);
    return LaunchCount<kCopies, Masking::kBinary>(ctx, args);
  }
  absl::Status Count(const ExecContext& ctx, FfdArgs args) {
    args.tiles = count_tiles_;
    INTRAWARP_RETURN_IF_ERROR(few_copies_ ? CountCopies<1>(ctx, args) : CountCopies<4>(ctx, args));
    NmiArgs nmi{args.skip, args.histogram, args.moving_bins, args.value, derivative_, nullptr, args.next_piece};
    if (masking() == Masking::kWeighted) nmi.samples = args.samples;
    NmiKernel<<<1, kNmiThreads, 0, CudaStream(ctx)>>>(nmi);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  }

  absl::Status Gather(const ExecContext& ctx, const int* skip, const MetricValue*, bool adds,
                      float* gradient) override {
    const int64_t nodes = objective_.grid.voxels();
    const bool divide_by_weight = objective_.metric == MetricKind::kSsd || objective_.metric == MetricKind::kMind;
    FfdArgs args = args_;
    args.skip = skip;
    GatherKernel<<<CeilDivide(nodes, kGatherNodes), dim3(kGatherNodes, 3), 0, CudaStream(ctx)>>>(
        args, gather_, divide_by_weight, adds, gradient);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  }

  const FfdObjective objective_;
  FfdArgs args_ = {};
  GatherTables gather_ = {};
  FfdTiles count_tiles_;
  int count_blocks_ = 0;
  bool few_copies_ = false;
  uint8_t* bins_ = nullptr;
  float* derivative_ = nullptr;
  float* voxel_gradient_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FfdEvaluator>> MakeFfdEvaluator(const ExecContext& ctx, const FfdObjective& objective) {
  return CudaFfdEvaluator::Make(ctx, objective);
}

int64_t FfdEvaluatorBytes(MetricKind metric, const Geometry& fixed, const Geometry& moving, const Geometry& grid) {
  FfdObjective objective;
  objective.metric = metric;
  objective.fixed.geometry = objective.moving.geometry = fixed;
  objective.grid = grid;
  const absl::StatusOr<FfdPlan> plan = MakeFfdPlan(objective);
  if (!plan.ok()) return 0;
  const FfdTiles tiles = PassTiles(*plan, fixed.size);
  const Sizes sizes(metric, fixed.size, tiles);
  const auto rounded = [](size_t count, size_t size) { return static_cast<int64_t>(Arena::Rounded(count * size)); };
  int64_t bytes = 0;
  const int tile_counts[3] = {tiles.tiles_x, tiles.tiles_y, tiles.runs};
  for (int a = 0; a < 3; ++a) {
    bytes += rounded(fixed.size[a], sizeof(int)) + rounded(fixed.size[a], sizeof(float4));
    bytes += rounded(grid.size[a], sizeof(int2)) + rounded(tile_counts[a], sizeof(int));
  }
  bytes += rounded(sizes.partials, sizeof(float)) + rounded(sizes.block_sums, sizeof(double)) +
           2 * rounded(1, sizeof(unsigned)) + rounded(1, sizeof(double)) + rounded(1, sizeof(unsigned long long)) +
           rounded(sizes.bins, 1) + rounded(sizes.histogram, sizeof(unsigned long long)) +
           rounded(sizes.derivative, sizeof(float)) + 2 * rounded(sizes.warped, sizeof(float)) +
           rounded(sizes.weights, sizeof(float));
  if (metric == MetricKind::kMind) {
    bytes += MindDescriptorBytes(fixed) + MindDescriptorBytes(moving) +
             std::max(MindWorkspaceBytes(fixed), MindWorkspaceBytes(moving));
  }
  return bytes + VoxelGradientWorkspaceBytes(metric, fixed.size);
}

}  // namespace intrawarp::cuda
