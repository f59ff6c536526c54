// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/device/parallel.h"
#include "engine/transform/control_grid_kernels.h"
#include "engine/transform/float_rows.h"
#include "hwy/cache_control.h"

namespace intrawarp::cpu {
namespace {

// Voxels (nodes, lines) that one piece of work takes.
constexpr int64_t kPiece = 4096;
// Rows of a block of work in y, and planes that it goes through in z.
constexpr int kBlockRows = 16, kBlockPlanes = 64;
// Fields of more bytes than this bypass the caches.
constexpr int64_t kStreamedBytes = int64_t{8} << 20;

// body(i) for i in [0, count), in pieces.
template <typename Body>
void ForEach(int64_t count, const Body& body) {
  ParallelFor((count + kPiece - 1) / kPiece, [&](int64_t piece) {
    const int64_t end = std::min(count, (piece + 1) * kPiece);
    for (int64_t i = piece * kPiece; i < end; ++i) body(i);
  });
}

void Store(Vec3f value, float* out) {
  out[0] = value.x;
  out[1] = value.y;
  out[2] = value.z;
}

std::vector<AxisTapWithDerivative> MakeTaps(const AxisMap& map) {
  std::vector<AxisTapWithDerivative> taps(map.voxels);
  for (int i = 0; i < map.voxels; ++i) taps[i] = MakeAxisTapWithDerivative(map, i);
  return taps;
}

// A block of rows and planes of an image, and the rows of control points that it needs.
struct Block {
  int y_begin, y_end, z_begin, z_end;
  int first_node_row, node_rows;
};

// Blocks of an image, numbered.
struct Blocks {
  int y_begin, y_end, z_begin, z_end;

  int rows() const { return (y_end - y_begin + kBlockRows - 1) / kBlockRows; }
  int planes() const { return (z_end - z_begin + kBlockPlanes - 1) / kBlockPlanes; }
  int64_t count() const { return int64_t{rows()} * planes(); }
  Block operator()(int64_t i, const std::vector<AxisTapWithDerivative>& y_taps, int y_stride) const {
    const int y = y_begin + static_cast<int>(i % rows()) * kBlockRows;
    const int z = z_begin + static_cast<int>(i / rows()) * kBlockPlanes;
    Block b{y, std::min(y + kBlockRows, y_end), z, std::min(z + kBlockPlanes, z_end), 0, 0};
    b.first_node_row = y_taps[b.y_begin].tap.base;
    b.node_rows = y_taps[b.y_end - 1].tap.base + 3 * y_stride - b.first_node_row + 1;
    return b;
  }
};

// The node rows of a block, contracted along x, for the four planes of control points around the current one. Keeps
// planes until others take their places. With kDerivatives also contracted with the derivatives of the weights.
template <bool kDerivatives>
class ExpandedPlanes {
 public:
  static constexpr int kVariants = kDerivatives ? 2 : 1;

  static size_t Floats(const AxisMap& x, int node_rows) {
    return 4 * kVariants * node_rows * RowFloats(3 * x.voxels) + RowFloats(3 * x.nodes);
  }
  ExpandedPlanes(const float* grid, const AxisMap& x, const AxisMap& y, const AffineMapF* linear,
                 const std::vector<AxisTapWithDerivative>& x_taps, const Block& block, float* scratch)
      : grid_(grid), x_(x), y_nodes_(y.nodes), linear_(linear), x_taps_(x_taps), block_(block), rows_(scratch) {
    row_floats_ = RowFloats(3 * x.voxels);
    nodes_ = rows_ + 4 * kVariants * block.node_rows * row_floats_;
  }

  // Row j of the block's node rows in plane `node`; variant 1: derivatives.
  const float* Row(int node, int j, int variant = 0) const { return RowAt(node % 4, j, variant); }

  void Load(int node) {
    if (held_[node % 4] == node) return;
    held_[node % 4] = node;
    for (int j = 0; j < block_.node_rows; ++j) {
      const float* from = grid_ + 3 * ((int64_t{node} * y_nodes_ + block_.first_node_row + j) * x_.nodes);
      LoadNodes(from);
      ExpandRow(nodes_, x_taps_.data(), x_.voxels, 3 * x_.stride(), /*derivative=*/false, RowAt(node % 4, j, 0));
      if (kDerivatives) {
        ExpandRow(nodes_, x_taps_.data(), x_.voxels, 3 * x_.stride(), /*derivative=*/true, RowAt(node % 4, j, 1));
      }
    }
  }

 private:
  float* RowAt(int slot, int j, int variant) const {
    return rows_ + ((slot * kVariants + variant) * block_.node_rows + j) * row_floats_;
  }
  void LoadNodes(const float* from) {
    if (linear_ == nullptr) {
      std::copy(from, from + 3 * x_.nodes, nodes_);
      return;
    }
    for (int i = 0; i < 3 * x_.nodes; i += 3) Store(linear_->Linear({from[i], from[i + 1], from[i + 2]}), nodes_ + i);
  }

  const float* grid_;
  const AxisMap& x_;
  int y_nodes_;
  const AffineMapF* linear_;
  const std::vector<AxisTapWithDerivative>& x_taps_;
  const Block& block_;
  float* rows_;
  float* nodes_;
  size_t row_floats_;
  int held_[4] = {-1, -1, -1, -1};
};

// --- Evaluation ---

// The part of a row that a run has, as elements of the row; empty: begin == end.
struct RowPart {
  int begin = 0, end = 0;
};

RowPart PartOf(const VoxelRun& run, int64_t row) {
  const int64_t start = row * run.size.x;
  const int64_t begin = std::clamp<int64_t>(run.first - start, 0, run.size.x),
                end = std::clamp<int64_t>(run.first + run.count - start, 0, run.size.x);
  return {static_cast<int>(begin), static_cast<int>(std::max(begin, end))};
}

// Eight voxels of a mask.
uint64_t LoadWord(const uint8_t* mask) {
  uint64_t word;
  std::memcpy(&word, mask, sizeof(word));
  return word;
}
// Whether any byte of a word is 0 (Mycroft's test).
bool HasZeroByte(uint64_t word) { return ((word - 0x0101010101010101u) & ~word & 0x8080808080808080u) != 0; }

bool AnySelected(const uint8_t* mask, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    if (LoadWord(mask + i) != 0) return true;
  }
  return std::any_of(mask + i, mask + count, [](uint8_t m) { return m != 0; });
}

void ClearUnselected(const uint8_t* mask, int64_t count, float* out) {
  for (int64_t i = 0; i < count;) {
    if (i + 8 <= count && !HasZeroByte(LoadWord(mask + i))) {
      i += 8;
      continue;
    }
    for (const int64_t end = std::min(i + 8, count); i < end; ++i) {
      if (mask[i] == 0) Store({}, out + 3 * i);
    }
  }
}

class Evaluator {
 public:
  explicit Evaluator(const AlignedEvaluation& task)
      : t_(task), x_taps_(MakeTaps(task.x)), y_taps_(MakeTaps(task.y)), z_taps_(MakeTaps(task.z)) {
    const Int3 n = t_.run.size;
    const int64_t first_row = t_.run.first / n.x, last_row = (t_.run.first + t_.run.count - 1) / n.x;
    blocks_ = {0, n.y, static_cast<int>(first_row / n.y), static_cast<int>(last_row / n.y) + 1};
    if (blocks_.z_end - blocks_.z_begin == 1) {
      blocks_.y_begin = static_cast<int>(first_row % n.y);
      blocks_.y_end = static_cast<int>(last_row % n.y) + 1;
    }
    streamed_ = 3 * static_cast<int64_t>(sizeof(float)) * t_.run.count > kStreamedBytes;
    if (!t_.is_affine) return;
    along_x_.resize(RowFloats(3 * n.x));
    for (int e = 0; e < 3 * n.x; ++e) along_x_[e] = t_.rest.m[e % 3][0] * (e / 3);
  }

  void Run() const {
    ParallelFor(blocks_.count(), [&](int64_t i) { EvaluateBlock(blocks_(i, y_taps_, t_.y.stride())); });
  }

 private:
  void EvaluateBlock(const Block& block) const {
    const size_t row_floats = RowFloats(3 * t_.x.voxels);
    const size_t expanded = ExpandedPlanes<false>::Floats(t_.x, block.node_rows);
    float* const scratch = ThreadScratch<float>(expanded + (block.node_rows + 1) * row_floats);
    ExpandedPlanes<false> planes(t_.grid, t_.x, t_.y, t_.is_affine ? &t_.linear : nullptr, x_taps_, block, scratch);
    float* const masked = scratch + expanded;
    float* const plane = masked + row_floats;
    for (int z = block.z_begin; z < block.z_end; ++z) {
      if (ClearedPlane(block, z, masked)) continue;
      const AxisTap& tap = z_taps_[z].tap;
      for (int k = 0; k < 4; ++k) planes.Load(tap.base + k * t_.z.stride());
      for (int j = 0; j < block.node_rows; ++j) {
        const float* rows[4];
        for (int k = 0; k < 4; ++k) rows[k] = planes.Row(tap.base + k * t_.z.stride(), j);
        CombineRows(rows, tap.weight, 3 * t_.x.voxels, plane + j * row_floats);
      }
      for (int y = block.y_begin; y < block.y_end; ++y) EvaluateRow(plane, row_floats, masked, block, y, z);
    }
    if (streamed_) hwy::FlushStream();
  }

  // `masked`: room for a row.
  void EvaluateRow(const float* plane, size_t row_floats, float* masked, const Block& block, int y, int z) const {
    const int64_t row = int64_t{z} * t_.run.size.y + y, start = row * t_.run.size.x;
    const RowPart part = PartOf(t_.run, row);
    if (part.begin == part.end) return;
    float* const out = t_.run.out + 3 * (start + part.begin - t_.run.first);
    const uint8_t* const mask = t_.run.mask == nullptr ? nullptr : t_.run.mask + start + part.begin;
    const AxisTap& tap = y_taps_[y].tap;
    RowSum sum;
    for (int k = 0; k < 4; ++k) {
      sum.rows[k] = plane + (tap.base + k * t_.y.stride() - block.first_node_row) * row_floats;
      sum.weight[k] = tap.weight[k];
    }
    if (t_.is_affine) {
      sum.along_x = along_x_.data();
      const Vec3d base = t_.rest({0, static_cast<double>(y), static_cast<double>(z)});
      for (int c = 0; c < 3; ++c) sum.base[c] = base[c];
    }
    if (mask == nullptr) {
      FinishRow(sum, 3 * part.begin, 3 * part.end, streamed_, out);
      return;
    }
    const int voxels = part.end - part.begin;
    if (AnySelected(mask, voxels)) {
      FinishRow(sum, 3 * part.begin, 3 * part.end, /*streamed=*/false, masked);
      ClearUnselected(mask, voxels, masked);
    } else {
      std::fill(masked, masked + 3 * voxels, 0.0f);
    }
    CopyRow(masked, 3 * voxels, streamed_, out);
  }

  // Whether the mask selects nothing of a block's plane, which is 0 then.
  bool ClearedPlane(const Block& block, int z, float* masked) const {
    if (t_.run.mask == nullptr) return false;
    const Int3 n = t_.run.size;
    const int64_t first_row = int64_t{z} * n.y + block.y_begin, end_row = int64_t{z} * n.y + block.y_end;
    if (AnySelected(t_.run.mask + first_row * n.x, (end_row - first_row) * n.x)) return false;
    std::fill(masked, masked + 3 * n.x, 0.0f);
    for (int64_t row = first_row; row < end_row; ++row) {
      const RowPart part = PartOf(t_.run, row);
      if (part.begin == part.end) continue;
      CopyRow(masked, 3 * (part.end - part.begin), streamed_, t_.run.out + 3 * (row * n.x + part.begin - t_.run.first));
    }
    return true;
  }

  const AlignedEvaluation& t_;
  std::vector<AxisTapWithDerivative> x_taps_, y_taps_, z_taps_;
  Blocks blocks_;
  bool streamed_ = false;
  // (A - I)p along a row, from its first voxel.
  std::vector<double> along_x_;
};

// --- Determinant ---

void EvaluateDeterminantBlock(const AlignedDeterminant& t, const std::vector<AxisTapWithDerivative>& x_taps,
                              const std::vector<AxisTapWithDerivative>& y_taps,
                              const std::vector<AxisTapWithDerivative>& z_taps, const Block& block) {
  const int count = 3 * t.x.voxels;
  const size_t row_floats = RowFloats(count), plane_floats = block.node_rows * row_floats;
  const size_t expanded = ExpandedPlanes<true>::Floats(t.x, block.node_rows);
  float* const scratch = ThreadScratch<float>(expanded + 3 * plane_floats + 3 * row_floats);
  ExpandedPlanes<true> planes(t.grid, t.x, t.y, nullptr, x_taps, block, scratch);
  // Contracted along x and z: with the derivative along x, none, and the derivative along z.
  float* const contracted = scratch + expanded;
  float* const gradient = contracted + 3 * plane_floats;
  for (int z = block.z_begin; z < block.z_end; ++z) {
    const AxisTapWithDerivative& zt = z_taps[z];
    for (int k = 0; k < 4; ++k) planes.Load(zt.tap.base + k * t.z.stride());
    for (int j = 0; j < block.node_rows; ++j) {
      for (int v = 0; v < 3; ++v) {
        const float* rows[4];
        for (int k = 0; k < 4; ++k) rows[k] = planes.Row(zt.tap.base + k * t.z.stride(), j, v == 0 ? 1 : 0);
        CombineRows(rows, v == 2 ? zt.derivative : zt.tap.weight, count,
                    contracted + v * plane_floats + j * row_floats);
      }
    }
    for (int y = block.y_begin; y < block.y_end; ++y) {
      const AxisTapWithDerivative& yt = y_taps[y];
      for (int v = 0; v < 3; ++v) {
        const float* rows[4];
        for (int k = 0; k < 4; ++k) {
          rows[k] =
              contracted + v * plane_floats + (yt.tap.base + k * t.y.stride() - block.first_node_row) * row_floats;
        }
        CombineRows(rows, v == 1 ? yt.derivative : yt.tap.weight, count, gradient + v * row_floats);
      }
      DeterminantRow(gradient, gradient + row_floats, gradient + 2 * row_floats, t.to_index, t.x.voxels,
                     t.out + (int64_t{z} * t.y.voxels + y) * t.x.voxels);
    }
  }
}

// --- Transpose: along z, y and x in turn ---

// Adds to the `nodes` rows of `out` (out_stride apart) what the `voxels` rows of `in` contribute.
void TransposeRows(const std::vector<AxisTapWithDerivative>& taps, const AxisMap& map, const float* in,
                   int64_t in_stride, int64_t count, float* out, int64_t out_stride) {
  for (int k = 0; k < map.nodes; ++k) std::fill(out + k * out_stride, out + k * out_stride + count, 0.0f);
  // An axis with one control point has no others to add to.
  float* const unused = map.nodes == 1 ? ThreadScratch<float>(3 * count) : nullptr;
  if (unused != nullptr) std::fill(unused, unused + 3 * count, 0.0f);
  for (int i = 0; i < map.voxels;) {
    // Neighbouring rows that have the same neighbours, at a time.
    const int base = taps[i].tap.base;
    float weight[kMaxAddedRows][4];
    int rows = 0;
    for (; rows < kMaxAddedRows && i + rows < map.voxels && taps[i + rows].tap.base == base; ++rows) {
      std::copy(taps[i + rows].tap.weight, taps[i + rows].tap.weight + 4, weight[rows]);
    }
    float* sums[4];
    for (int k = 0; k < 4; ++k) {
      sums[k] = map.nodes == 1 && k > 0 ? unused + (k - 1) * count : out + (base + k) * out_stride;
    }
    AddRows(in + i * in_stride, in_stride, weight, rows, count, sums);
    i += rows;
  }
}

void TransposeAlongX(const std::vector<AxisTapWithDerivative>& taps, const AxisMap& map, const float* in, float* out) {
  std::fill(out, out + 3 * map.nodes, 0.0f);
  const int neighbours = map.nodes == 1 ? 1 : 4;
  for (int i = 0; i < map.voxels; ++i) {
    const AxisTap& tap = taps[i].tap;
    for (int k = 0; k < neighbours; ++k) {
      for (int c = 0; c < 3; ++c) out[3 * (tap.base + k) + c] += tap.weight[k] * in[3 * i + c];
    }
  }
}

}  // namespace

absl::Status EvaluateAligned(const ExecContext&, const AlignedEvaluation& task) {
  Evaluator(task).Run();
  return absl::OkStatus();
}

absl::Status EvaluateGeneral(const ExecContext&, const ForwardMap& map, const VoxelRun& run) {
  ForEach(run.count, [&](int64_t i) {
    const int64_t place = run.first + i;
    Store(EvaluateVoxel(map, run, place, VoxelAt(run.size, place)), run.out + 3 * i);
  });
  return absl::OkStatus();
}

absl::Status EvaluateDeterminantAligned(const ExecContext&, const AlignedDeterminant& task) {
  const auto x = MakeTaps(task.x), y = MakeTaps(task.y), z = MakeTaps(task.z);
  const Blocks blocks{0, task.y.voxels, 0, task.z.voxels};
  ParallelFor(blocks.count(),
              [&](int64_t i) { EvaluateDeterminantBlock(task, x, y, z, blocks(i, y, task.y.stride())); });
  return absl::OkStatus();
}

absl::Status EvaluateDeterminantGeneral(const ExecContext&, const GeneralDeterminant& task) {
  ForEach(int64_t{task.size.x} * task.size.y * task.size.z,
          [&](int64_t i) { task.out[i] = DeterminantAt(task, VoxelAt(task.size, i)); });
  return absl::OkStatus();
}

absl::Status Transpose(const ExecContext&, const Transposition& t) {
  const auto x = MakeTaps(t.x), y = MakeTaps(t.y), z = MakeTaps(t.z);
  const int64_t row = 3 * int64_t{t.x.voxels}, plane = row * t.y.voxels, contracted = row * t.y.nodes;
  ParallelFor(t.y.voxels,
              [&](int64_t j) { TransposeRows(z, t.z, t.field + j * row, plane, row, t.along_z + j * row, plane); });
  ParallelFor(t.z.nodes, [&](int64_t k) {
    TransposeRows(y, t.y, t.along_z + k * plane, row, row, t.along_y + k * contracted, row);
  });
  ParallelFor(int64_t{t.y.nodes} * t.z.nodes,
              [&](int64_t r) { TransposeAlongX(x, t.x, t.along_y + r * row, t.grid + r * 3 * t.x.nodes); });
  return absl::OkStatus();
}

absl::Status Refine(const ExecContext&, const Refinement& task) {
  ForEach(int64_t{task.fine_size.x} * task.fine_size.y * task.fine_size.z,
          [&](int64_t i) { Store(RefinedNode(task, VoxelAt(task.fine_size, i)), task.fine + 3 * i); });
  return absl::OkStatus();
}

absl::Status Resample(const ExecContext&, const Resampling& task) {
  ForEach(int64_t{task.out_size.x} * task.out_size.y * task.out_size.z,
          [&](int64_t i) { Store(ResampledNode(task, VoxelAt(task.out_size, i)), task.out + 3 * i); });
  for (int a = 0; a < 3; ++a) {
    const Lines lines(task.out_size, a);
    ForEach(lines.count, [&](int64_t i) { PrefilterLine(task.out + lines.Start(i), lines.stride, lines.length); });
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
