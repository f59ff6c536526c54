// SPDX-License-Identifier: Apache-2.0
// Sparse products A A (A A^T where A is not square) of the generators' matrices and of Matrix Market files, resident on
// the device, beside cuSPARSE on the same matrices at the same precision, where there is a GPU and the library.
//
//   sparse_bench [--device=auto|cpu|cuda] [--data=FOLDER] [--matrix=NAME[,NAME...]] [--precision=fp32|fp64|...[,...]]
//                [--path=auto|scalar|tiles|reuse] [--repeats=N] [--csv] [--kernels] [--masked] [--routes]
//                [--galerkin=N]
//
// A line a matrix and precision. Times are medians in ms of --repeats (20; CPU: 3) warm single calls, each waited for:
//   product   CSR to CSR: pattern, allocation of the result, values        GF/s: two flops a product
//   floor     A, B, C and row offsets once at the bandwidth of a plain copy; x: product over it
//   plan      the pattern alone                exec: the values of a plan; again: of one made for many executions
//   cusparse, reuse   its default product, and its values of a known pattern; x: ours against it (above 1: faster)
//   MB        peak of the device's pool over one product, operands left out; cuMB: cuSPARSE's buffers and C
// Each result is checked first: C x against A (B x) in float64. With --kernels, each product's work on the GPU follows
// its line, in us: when it begins, how long it takes.
//
// With --galerkin=N the lines are the two products of P^T A P, where A is the 27-point pattern of an N^3 grid with
// three unknowns a node, and P interpolates linearly from every second node; what an AMG set-up makes of linear
// elasticity.
//
// With --masked a line is C = A A under the mask A, for square A, beside the whole product: product, plan and exec as
// above, of the masked product; whole: product of the whole; x: whole over product (above 1: the mask saves time); MB
// and whole: the peaks of the device's pool, on a GPU. Each entry is checked against the whole product.
//
// With --routes, on a GPU, a line is what the choice of a route is worth, for each of three kinds of work: `product` as
// above; `again`, the values of a plan made for many executions; and `masked`, C = A A under the mask A for square A.
// Times are medians in ms: of the choice, of the best of all forced routes, and of each; x: choice over best. Below 1,
// the choice mixes routes, row by row, better than any of them does. A route that ended in an error has no time; of a
// route that falls back to another, where a matrix does not allow it, the time is the other's. `worst` is the largest x
// of the run by kind. The results are not checked here: the tests check that all routes give the same.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "engine/sparse/multiply.h"
#include "io/format/matrix_market.h"
#include "tests/bench/sparse_generators.h"
#if INTRAWARP_WITH_CUDA
#include "tests/bench/kernel_trace.h"
#include "tests/bench/sparse_bench_cusparse.h"
#endif

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string device = "auto";
  std::string data;
  std::vector<std::string> matrices;
  std::vector<std::string> precisions = {"fp32", "fp64"};
  MultiplyPath path = MultiplyPath::kAuto;
  std::optional<int> repeats;
  bool csv = false;
  bool kernels = false;
  bool masked = false;
  bool routes = false;
  int galerkin = 0;

  int RepeatsOn(const Device& device) const { return repeats.value_or(device.kind() == DeviceKind::kCuda ? 20 : 3); }
};

struct PrecisionRow {
  const char* name;
  MultiplyPrecision precision;
  double tolerance;  // of a row's sum; every term is positive
};
constexpr PrecisionRow kPrecisions[] = {{"fp32", MultiplyPrecision::kFp32, 1e-4},
                                        {"fp64", MultiplyPrecision::kFp64, 1e-12},
                                        {"tf32", MultiplyPrecision::kTf32, 2e-3},
                                        {"fp16", MultiplyPrecision::kFp16, 2e-3},
                                        {"bf16", MultiplyPrecision::kBf16, 1e-2}};

struct Line {
  std::string matrix, precision;
  int64_t rows = 0, a_entries = 0, products = 0, entries = 0;
  double product = 0, floor = 0, plan = 0, execute = 0, again = 0, cusparse = 0, reuse = 0;  // seconds
  int64_t peak = 0, cusparse_peak = 0;
  std::string note;
};

void PrintHeader(const Flags& flags) {
  if (flags.csv) {
    std::printf(
        "matrix,precision,rows,nnz_a,products,nnz_c,product_ms,gflops,floor_ms,to_floor,plan_ms,execute_ms,again_ms,"
        "cusparse_ms,over_cusparse,reuse_ms,over_reuse,peak_mb,cusparse_mb,note\n");
    return;
  }
  std::printf("%-14s %-5s %8s %9s %9s %9s %8s %6s %7s %5s %8s %8s %8s %8s %5s %8s %5s %7s %7s\n", "matrix", "prec",
              "rows", "nnz(A)", "products", "nnz(C)", "product", "GF/s", "floor", "x", "plan", "exec", "again",
              "cusparse", "x", "reuse", "x", "MB", "cuMB");
}

void Print(const Flags& flags, const Line& l) {
  const char* format =
      flags.csv ? "%s,%s,%lld,%lld,%lld,%lld,%.4f,%.1f,%.4f,%.2f,%.4f,%.4f,%.4f,%.4f,%.2f,%.4f,%.2f,%.1f,%.1f,%s\n"
                : "%-14s %-5s %8lld %9lld %9lld %9lld %8.3f %6.0f %7.4f %5.1f %8.3f %8.3f %8.3f %8.3f %5.2f %8.3f "
                  "%5.2f %7.1f "
                  "%7.1f %s\n";
  const auto over = [](double theirs, double ours) { return ours > 0 ? theirs / ours : 0; };
  std::printf(format, l.matrix.c_str(), l.precision.c_str(), static_cast<long long>(l.rows),
              static_cast<long long>(l.a_entries), static_cast<long long>(l.products),
              static_cast<long long>(l.entries), l.product * 1e3, over(2e-9 * l.products, l.product), l.floor * 1e3,
              over(l.product, l.floor), l.plan * 1e3, l.execute * 1e3, l.again * 1e3, l.cusparse * 1e3,
              over(l.cusparse, l.product), l.reuse * 1e3, over(l.reuse, l.again), l.peak * 1e-6, l.cusparse_peak * 1e-6,
              l.note.c_str());
  std::fflush(stdout);
}

absl::StatusOr<double> Seconds(const ExecContext& ctx, const std::function<absl::Status()>& call) {
  const Clock::time_point begin = Clock::now();
  INTRAWARP_RETURN_IF_ERROR(call());
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

absl::StatusOr<double> MedianSeconds(const ExecContext& ctx, int repeats, const std::function<absl::Status()>& call) {
  INTRAWARP_RETURN_IF_ERROR(Seconds(ctx, call).status());
  std::vector<double> times(repeats);
  for (double& t : times) {
    INTRAWARP_ASSIGN_OR_RETURN(t, Seconds(ctx, call));
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Read and written, at the best of ten copies.
absl::StatusOr<double> BytesPerSecond(const ExecContext& ctx) {
  const size_t bytes = ctx.is_cuda() ? size_t{1} << 30 : size_t{1} << 27;
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer from, ctx.device().Allocate(bytes, ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer to, ctx.device().Allocate(bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(from.as<void>(), 1, bytes, ctx.stream()));
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(const double seconds, Seconds(ctx, [&] {
                                 return ctx.device().Copy(to.as<void>(), from.as<void>(), bytes, ctx.stream());
                               }));
    best = std::min(best, seconds);
  }
  return 2 * bytes / best;
}

template <typename T>
std::vector<double> Apply(const HostCsr<T>& m, const std::vector<double>& x) {
  std::vector<double> y(m.rows);
  for (int32_t r = 0; r < m.rows; ++r) {
    for (int64_t i = m.row_offsets[r]; i < m.row_offsets[r + 1]; ++i) {
      y[r] += static_cast<double>(m.values[i]) * x[m.column_indices[i]];
    }
  }
  return y;
}

// Against the magnitudes, as values of files have signs.
template <typename T>
std::vector<double> ApplyMagnitudes(const HostCsr<T>& m, const std::vector<double>& x) {
  HostCsr<T> magnitudes = m;
  for (T& v : magnitudes.values) v = std::abs(v);
  return Apply(magnitudes, x);
}

template <typename T>
absl::Status CheckProduct(const HostCsr<T>& a, const HostCsr<T>& b, const HostCsr<T>& c, double tolerance) {
  INTRAWARP_RETURN_IF_ERROR(ValidateCsr(c));
  std::vector<double> x(b.columns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 1 + static_cast<double>(i % 7);
  const std::vector<double> expected = Apply(a, Apply(b, x)), got = Apply(c, x);
  const std::vector<double> size = ApplyMagnitudes(a, ApplyMagnitudes(b, x));
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::abs(got[i] - expected[i]) <= tolerance * size[i] || !std::isfinite(expected[i])) continue;
    return absl::InternalError(absl::StrCat("WRONG in row ", i, ": ", got[i], " for ", expected[i]));
  }
  return absl::OkStatus();
}

absl::Status AddCusparse(const ConstCsrView& a, const ConstCsrView& b, int repeats, Line* line) {
#if INTRAWARP_WITH_CUDA
  INTRAWARP_ASSIGN_OR_RETURN(const CusparseResult theirs, TimeCusparse(a, b, repeats));
  line->cusparse = theirs.product_seconds;
  line->reuse = theirs.reuse_seconds;
  line->cusparse_peak = theirs.product_bytes;
  if (theirs.entries != line->entries) line->note += absl::StrCat(" cusparse: ", theirs.entries, " entries");
#else
  (void)a, (void)b, (void)repeats, (void)line;
#endif
  return absl::OkStatus();
}

std::string KernelLines(const ExecContext& ctx, const std::function<absl::Status()>& call) {
  std::string lines;
#if INTRAWARP_WITH_CUDA
  const auto traced = TraceKernels([&]() -> absl::Status {
    INTRAWARP_RETURN_IF_ERROR(call());
    return ctx.device().Synchronize(ctx.stream());
  });
  if (!traced.ok()) return traced.status().ToString();
  for (const TracedWork& w : *traced) {
    absl::StrAppendFormat(&lines, "\n    %9.1f %8.1f  %-60s %6d x %d, %d B shared, %d registers", w.begin * 1e6,
                          (w.end - w.begin) * 1e6, w.name, w.blocks, w.threads, w.shared_bytes, w.registers);
  }
#else
  (void)ctx, (void)call;
#endif
  return lines;
}

template <typename T>
absl::Status Measure(Device& device, const HostCsr<T>& host_a, const HostCsr<T>& host_b, const PrecisionRow& precision,
                     const Flags& flags, double bytes_per_second, Line* line) {
  const bool is_square_of_a = &host_b == &host_a;
  MultiplyOptions options;
  options.precision = precision.precision;
  options.path = flags.path;
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext small, OwnedContext::Create(device, 1 << 20));
  INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix a, CsrMatrix::Upload(device, small.context().stream(), host_a));
  // One resident matrix for both operands of a square, as everybody's product sees it.
  CsrMatrix other;
  if (!is_square_of_a) {
    INTRAWARP_ASSIGN_OR_RETURN(other, CsrMatrix::Upload(device, small.context().stream(), host_b));
  }
  const CsrMatrix& b = is_square_of_a ? a : other;
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyEstimate estimate,
                             EstimateMultiply(small.context(), a.view(), b.view(), options));
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned,
                             OwnedContext::Create(device, std::max<int64_t>(estimate.workspace_bytes, 1)));
  const ExecContext ctx = owned.context();
  line->rows = host_a.rows;
  line->a_entries = host_a.entries();
  line->products = estimate.multiplications;
#if INTRAWARP_WITH_CUDA
  const int64_t before = ctx.is_cuda() ? PoolUsedBytes() : 0;
  if (ctx.is_cuda()) ResetPoolPeak();
#endif
  INTRAWARP_ASSIGN_OR_RETURN(CsrMatrix c, Multiply(ctx, a.view(), b.view(), options));
  INTRAWARP_RETURN_IF_ERROR(device.Synchronize(ctx.stream()));
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) line->peak = PoolPeakBytes() - before + estimate.workspace_bytes;
#endif
  line->entries = c.view().entries;
  {
    INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<T> host_c, c.Download<T>(device, ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(CheckProduct(host_a, host_b, host_c, precision.tolerance));
  }
  line->floor = static_cast<double>(a.bytes() + b.bytes() + c.bytes()) / bytes_per_second;
  const int repeats = flags.RepeatsOn(device);
  INTRAWARP_ASSIGN_OR_RETURN(
      line->product, MedianSeconds(ctx, repeats, [&] { return Multiply(ctx, a.view(), b.view(), options).status(); }));
  INTRAWARP_ASSIGN_OR_RETURN(
      line->plan, MedianSeconds(ctx, repeats, [&] { return PlanMultiply(ctx, a.view(), b.view(), options).status(); }));
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyPlan plan, PlanMultiply(ctx, a.view(), b.view(), options));
  INTRAWARP_ASSIGN_OR_RETURN(line->execute, MedianSeconds(ctx, repeats, [&] {
                               return ExecuteMultiply(ctx, plan, a.view(), b.view(), c.values());
                             }));
  if (!ctx.is_cuda()) return absl::OkStatus();
  MultiplyOptions often = options;
  often.many_executions = true;
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyPlan kept, PlanMultiply(ctx, a.view(), b.view(), often));
  INTRAWARP_RETURN_IF_ERROR(
      device.Fill(c.values(), 0xff, c.view().entries * BytesPerValue(c.view().type), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(line->again, MedianSeconds(ctx, repeats, [&] {
                               return ExecuteMultiply(ctx, kept, a.view(), b.view(), c.values());
                             }));
  {
    INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<T> host_c, c.Download<T>(device, ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(CheckProduct(host_a, host_b, host_c, precision.tolerance));
  }
  if (flags.kernels) {
    line->note += KernelLines(ctx, [&] { return Multiply(ctx, a.view(), b.view(), options).status(); });
    line->note += KernelLines(ctx, [&] { return ExecuteMultiply(ctx, plan, a.view(), b.view(), c.values()); });
    line->note += KernelLines(ctx, [&] { return ExecuteMultiply(ctx, kept, a.view(), b.view(), c.values()); });
  }
  if (flags.path != MultiplyPath::kAuto) return absl::OkStatus();
  if (absl::Status s = AddCusparse(a.view(), b.view(), repeats, line); !s.ok()) line->note += s.ToString();
  return absl::OkStatus();
}

struct MaskedLine {
  std::string matrix, precision;
  int64_t a_entries = 0, products = 0, entries = 0, whole_entries = 0;
  double product = 0, plan = 0, execute = 0, whole = 0;  // seconds
  int64_t peak = 0, whole_peak = 0;                      // bytes
  std::string note;
};

void PrintMaskedHeader(const Flags& flags) {
  if (flags.csv) {
    std::printf(
        "matrix,precision,nnz_a,products,nnz_c,nnz_whole,product_ms,plan_ms,execute_ms,whole_ms,over_whole,peak_mb,"
        "whole_mb,note\n");
    return;
  }
  std::printf("%-14s %-5s %9s %9s %9s %9s %8s %8s %8s %8s %5s %8s %8s\n", "matrix", "prec", "nnz(A)", "products",
              "nnz(C)", "nnz(AA)", "product", "plan", "exec", "whole", "x", "MB", "whole");
}

void Print(const Flags& flags, const MaskedLine& l) {
  const char* format = flags.csv ? "%s,%s,%lld,%lld,%lld,%lld,%.4f,%.4f,%.4f,%.4f,%.2f,%.1f,%.1f,%s\n"
                                 : "%-14s %-5s %9lld %9lld %9lld %9lld %8.3f %8.3f %8.3f %8.3f %5.2f %8.1f %8.1f %s\n";
  std::printf(format, l.matrix.c_str(), l.precision.c_str(), static_cast<long long>(l.a_entries),
              static_cast<long long>(l.products), static_cast<long long>(l.entries),
              static_cast<long long>(l.whole_entries), l.product * 1e3, l.plan * 1e3, l.execute * 1e3, l.whole * 1e3,
              l.product > 0 ? l.whole / l.product : 0, l.peak * 1e-6, l.whole_peak * 1e-6, l.note.c_str());
  std::fflush(stdout);
}

// Whether `c` has the entries of `whole` that are entries of `mask`, within `tolerance` of the largest value of a row.
template <typename T>
absl::Status CheckMasked(const HostCsr<T>& whole, const HostCsr<T>& mask, const HostCsr<T>& c, double tolerance) {
  INTRAWARP_RETURN_IF_ERROR(ValidateCsr(c));
  int64_t at = 0;
  for (int32_t r = 0; r < whole.rows; ++r) {
    int64_t w = whole.row_offsets[r];
    double largest = 0;
    for (int64_t i = w; i < whole.row_offsets[r + 1]; ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(whole.values[i])));
    }
    for (int64_t m = mask.row_offsets[r]; m < mask.row_offsets[r + 1]; ++m) {
      while (w < whole.row_offsets[r + 1] && whole.column_indices[w] < mask.column_indices[m]) ++w;
      if (w == whole.row_offsets[r + 1] || whole.column_indices[w] != mask.column_indices[m]) continue;
      if (at == c.row_offsets[r + 1] || c.column_indices[at] != whole.column_indices[w] ||
          std::abs(static_cast<double>(c.values[at]) - static_cast<double>(whole.values[w])) > tolerance * largest) {
        return absl::InternalError(absl::StrCat("WRONG in row ", r, ", column ", mask.column_indices[m]));
      }
      ++at;
    }
    if (at != c.row_offsets[r + 1]) return absl::InternalError(absl::StrCat("WRONG: row ", r, " is too long"));
  }
  return absl::OkStatus();
}

// A product in a workspace of its own, on the stream of `base`.
struct TimedProduct {
  CsrMatrix c;
  double product = 0, plan = 0, execute = 0;  // seconds
  int64_t multiplications = 0, peak = 0;
};

absl::StatusOr<TimedProduct> TimeSquare(const ExecContext& base, const ConstCsrView& a, const MultiplyOptions& options,
                                        int repeats) {
  TimedProduct t;
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyEstimate estimate, EstimateMultiply(base, a, a, options));
  t.multiplications = estimate.multiplications;
  INTRAWARP_ASSIGN_OR_RETURN(Buffer workspace,
                             base.device().Allocate(std::max<int64_t>(estimate.workspace_bytes, 1), base.stream()));
  Arena arena(std::move(workspace));
  const ExecContext ctx = base.WithArena(arena);
#if INTRAWARP_WITH_CUDA
  const int64_t before = ctx.is_cuda() ? PoolUsedBytes() : 0;
  if (ctx.is_cuda()) ResetPoolPeak();
#endif
  INTRAWARP_ASSIGN_OR_RETURN(t.c, Multiply(ctx, a, a, options));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
#if INTRAWARP_WITH_CUDA
  if (ctx.is_cuda()) t.peak = PoolPeakBytes() - before + estimate.workspace_bytes;
#endif
  INTRAWARP_ASSIGN_OR_RETURN(t.product,
                             MedianSeconds(ctx, repeats, [&] { return Multiply(ctx, a, a, options).status(); }));
  INTRAWARP_ASSIGN_OR_RETURN(t.plan,
                             MedianSeconds(ctx, repeats, [&] { return PlanMultiply(ctx, a, a, options).status(); }));
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyPlan plan, PlanMultiply(ctx, a, a, options));
  INTRAWARP_ASSIGN_OR_RETURN(
      t.execute, MedianSeconds(ctx, repeats, [&] { return ExecuteMultiply(ctx, plan, a, a, t.c.values()); }));
  return t;
}

template <typename T>
absl::Status MeasureMasked(Device& device, const HostCsr<T>& host_a, const PrecisionRow& precision, const Flags& flags,
                           MaskedLine* line) {
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned, OwnedContext::Create(device, 1 << 20));
  const ExecContext ctx = owned.context();
  INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix a, CsrMatrix::Upload(device, ctx.stream(), host_a));
  MultiplyOptions options;
  options.precision = precision.precision;
  options.path = flags.path;
  const int repeats = flags.RepeatsOn(device);
  INTRAWARP_ASSIGN_OR_RETURN(const TimedProduct whole, TimeSquare(ctx, a.view(), options, repeats));
  options.mask = a.view();
  INTRAWARP_ASSIGN_OR_RETURN(const TimedProduct masked, TimeSquare(ctx, a.view(), options, repeats));
  INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<T> host_whole, whole.c.Download<T>(device, ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<T> host_masked, masked.c.Download<T>(device, ctx.stream()));
  *line = {line->matrix,
           line->precision,
           host_a.entries(),
           whole.multiplications,
           host_masked.entries(),
           host_whole.entries(),
           masked.product,
           masked.plan,
           masked.execute,
           whole.product,
           masked.peak,
           whole.peak,
           {}};
  return CheckMasked(host_whole, host_a, host_masked, precision.tolerance);
}

// A kind of work, and the routes that can be forced for it.
struct ForcedRoute {
  const char* name;
  MultiplyPath path;
  MaskRoute mask_route = MaskRoute::kAuto;
};
struct RouteKind {
  const char* name;
  bool again, masked;
  std::vector<ForcedRoute> forced;
  double worst = 0;  // choice over best
};
std::vector<RouteKind> RouteKinds() {
  const std::vector<ForcedRoute> of_rows = {
      {"scalar", MultiplyPath::kScalar},       {"tiles", MultiplyPath::kTiles},
      {"shortrows", MultiplyPath::kShortRows}, {"longrows", MultiplyPath::kLongRows},
      {"bitmaps", MultiplyPath::kBitmaps},     {"tables", MultiplyPath::kTables}};
  std::vector<ForcedRoute> of_plans = of_rows;
  of_plans.push_back({"reuse", MultiplyPath::kReusePlan});
  return {{"product", false, false, of_rows},
          {"again", true, false, of_plans},
          {"masked",
           false,
           true,
           {{"mask", MultiplyPath::kAuto, MaskRoute::kMasked}, {"whole", MultiplyPath::kAuto, MaskRoute::kWhole}}}};
}

absl::StatusOr<double> TimeRoute(const ExecContext& base, const ConstCsrView& a, const ConstCsrView& b,
                                 const MultiplyOptions& options, bool again, int repeats) {
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyEstimate estimate, EstimateMultiply(base, a, b, options));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer workspace,
                             base.device().Allocate(std::max<int64_t>(estimate.workspace_bytes, 1), base.stream()));
  Arena arena(std::move(workspace));
  const ExecContext ctx = base.WithArena(arena);
  if (!again) return MedianSeconds(ctx, repeats, [&] { return Multiply(ctx, a, b, options).status(); });
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyPlan plan, PlanMultiply(ctx, a, b, options));
  const int64_t bytes = plan.pattern().entries * BytesPerValue(plan.value_type());
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer values, ctx.device().Allocate(bytes, ctx.stream()));
  return MedianSeconds(ctx, repeats, [&] { return ExecuteMultiply(ctx, plan, a, b, values.as<void>()); });
}

// Times one kind of work and prints its line. An error is one of the choice.
absl::Status MeasureRouteKind(const ExecContext& ctx, const ConstCsrView& a, const ConstCsrView& b,
                              MultiplyOptions options, const std::string& name, const char* precision,
                              const Flags& flags, RouteKind* kind) {
  options.many_executions = kind->again;
  if (kind->masked) options.mask = a;
  INTRAWARP_ASSIGN_OR_RETURN(const double chosen,
                             TimeRoute(ctx, a, b, options, kind->again, flags.RepeatsOn(ctx.device())));
  double best = 0;
  std::string each;
  for (const ForcedRoute& route : kind->forced) {
    options.path = route.path;
    options.mask_route = route.mask_route;
    options.many_executions = false;
    const absl::StatusOr<double> seconds = TimeRoute(ctx, a, b, options, kind->again, flags.RepeatsOn(ctx.device()));
    absl::StrAppend(&each, flags.csv ? "," : "  ", route.name, flags.csv ? "," : " ");
    if (!seconds.ok()) {
      each += "-";
      continue;
    }
    absl::StrAppendFormat(&each, "%.3f", *seconds * 1e3);
    if (best == 0 || *seconds < best) best = *seconds;
  }
  const double ratio = best > 0 ? chosen / best : 0;
  kind->worst = std::max(kind->worst, ratio);
  std::printf(flags.csv ? "%s,%s,%s,%.4f,%.4f,%.2f%s\n" : "%-14s %-5s %-8s %8.3f %8.3f %5.2f %s\n", name.c_str(),
              precision, kind->name, chosen * 1e3, best * 1e3, ratio, each.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

template <typename T>
absl::Status MeasureRoutes(Device& device, const HostCsr<T>& host_a, const HostCsr<T>& host_b, const std::string& name,
                           const PrecisionRow& precision, const Flags& flags, std::vector<RouteKind>* kinds) {
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned, OwnedContext::Create(device, 1 << 20));
  const ExecContext ctx = owned.context();
  const bool square = host_a.rows == host_a.columns;
  INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix a, CsrMatrix::Upload(device, ctx.stream(), host_a));
  CsrMatrix other;
  if (!square) {
    INTRAWARP_ASSIGN_OR_RETURN(other, CsrMatrix::Upload(device, ctx.stream(), host_b));
  }
  MultiplyOptions options;
  options.precision = precision.precision;
  for (RouteKind& kind : *kinds) {
    if (kind.masked && !square) continue;
    INTRAWARP_RETURN_IF_ERROR(
        MeasureRouteKind(ctx, a.view(), square ? a.view() : other.view(), options, name, precision.name, flags, &kind));
  }
  return absl::OkStatus();
}

template <typename T>
HostCsr<T> Cast(const HostCsr<double>& m) {
  return {m.rows, m.columns, m.row_offsets, m.column_indices, std::vector<T>(m.values.begin(), m.values.end())};
}

// a b by the product that is measured.
absl::StatusOr<HostCsr<double>> DoubleProduct(Device& device, const HostCsr<double>& a, const HostCsr<double>& b) {
  MultiplyOptions options;
  options.precision = MultiplyPrecision::kFp64;
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext small, OwnedContext::Create(device, 1 << 20));
  INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix left, CsrMatrix::Upload(device, small.context().stream(), a));
  INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix right, CsrMatrix::Upload(device, small.context().stream(), b));
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyEstimate estimate,
                             EstimateMultiply(small.context(), left.view(), right.view(), options));
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned,
                             OwnedContext::Create(device, std::max<int64_t>(estimate.workspace_bytes, 1)));
  INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix c, Multiply(owned.context(), left.view(), right.view(), options));
  return c.Download<double>(device, owned.context().stream());
}

absl::StatusOr<HostCsr<double>> Load(const std::string& name, const Flags& flags) {
  const std::filesystem::path path = std::filesystem::path(flags.data) / name;
  if (flags.data.empty() || !std::filesystem::exists(path)) return MatrixByName(name, 1);
  INTRAWARP_ASSIGN_OR_RETURN(const HostCoo coo, io::ReadMatrixMarket(path.string()));
  return CsrFromCoo<double>(coo);
}

// A B in each precision; a line each. Where `b` is `a`, one resident matrix is both.
absl::Status MeasureProduct(Device& device, const HostCsr<double>& a, const HostCsr<double>& b, const std::string& name,
                            const Flags& flags, double bytes_per_second) {
  for (const PrecisionRow& row : kPrecisions) {
    if (std::find(flags.precisions.begin(), flags.precisions.end(), row.name) == flags.precisions.end()) continue;
    Line line;
    line.matrix = name;
    line.precision = row.name;
    absl::Status s;
    if (row.precision == MultiplyPrecision::kFp64) {
      s = Measure(device, a, b, row, flags, bytes_per_second, &line);
    } else {
      const HostCsr<float> single_a = Cast<float>(a);
      s = &a == &b ? Measure(device, single_a, single_a, row, flags, bytes_per_second, &line)
                   : Measure(device, single_a, Cast<float>(b), row, flags, bytes_per_second, &line);
    }
    if (!s.ok()) line.note += s.ToString();
    Print(flags, line);
    INTRAWARP_RETURN_IF_ERROR(device.health());
  }
  return absl::OkStatus();
}

absl::Status MeasureMatrix(Device& device, const std::string& name, const Flags& flags, double bytes_per_second) {
  INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<double> a, Load(name, flags));
  const std::string matrix = name.substr(0, name.find(".mtx"));
  if (a.rows == a.columns) return MeasureProduct(device, a, a, matrix, flags, bytes_per_second);
  return MeasureProduct(device, a, Transposed(a), matrix, flags, bytes_per_second);
}

// A P and P^T (A P).
absl::Status MeasureGalerkin(Device& device, const Flags& flags, double bytes_per_second) {
  constexpr int kUnknowns = 3;
  const HostCsr<double> a = Fem27(kUnknowns, flags.galerkin, 1), p = LinearInterpolation(kUnknowns, flags.galerkin);
  INTRAWARP_RETURN_IF_ERROR(MeasureProduct(device, a, p, "A P", flags, bytes_per_second));
  INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<double> a_p, DoubleProduct(device, a, p));
  return MeasureProduct(device, Transposed(p), a_p, "P^T (A P)", flags, bytes_per_second);
}

absl::Status MeasureMaskedMatrix(Device& device, const std::string& name, const Flags& flags) {
  INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<double> a, Load(name, flags));
  if (a.rows != a.columns) return absl::OkStatus();
  for (const PrecisionRow& row : kPrecisions) {
    if (std::find(flags.precisions.begin(), flags.precisions.end(), row.name) == flags.precisions.end()) continue;
    MaskedLine line;
    line.matrix = name.substr(0, name.find(".mtx"));
    line.precision = row.name;
    const absl::Status s = row.precision == MultiplyPrecision::kFp64
                               ? MeasureMasked(device, a, row, flags, &line)
                               : MeasureMasked(device, Cast<float>(a), row, flags, &line);
    if (!s.ok()) line.note = s.ToString();
    Print(flags, line);
    INTRAWARP_RETURN_IF_ERROR(device.health());
  }
  return absl::OkStatus();
}

absl::Status MeasureRoutesOfMatrix(Device& device, const std::string& name, const Flags& flags,
                                   std::vector<RouteKind>* kinds) {
  INTRAWARP_ASSIGN_OR_RETURN(const HostCsr<double> a, Load(name, flags));
  const HostCsr<double> b = a.rows == a.columns ? a : Transposed(a);
  const std::string matrix = name.substr(0, name.find(".mtx"));
  for (const PrecisionRow& row : kPrecisions) {
    if (std::find(flags.precisions.begin(), flags.precisions.end(), row.name) == flags.precisions.end()) continue;
    const absl::Status s = row.precision == MultiplyPrecision::kFp64
                               ? MeasureRoutes(device, a, b, matrix, row, flags, kinds)
                               : MeasureRoutes(device, Cast<float>(a), Cast<float>(b), matrix, row, flags, kinds);
    if (!s.ok()) std::printf("%s %s: %s\n", matrix.c_str(), row.name, s.ToString().c_str());
    INTRAWARP_RETURN_IF_ERROR(device.health());
  }
  return absl::OkStatus();
}

void PrintRoutesHeader(const Flags& flags) {
  if (flags.csv) {
    std::printf("matrix,precision,kind,choice_ms,best_ms,choice_over_best,route,ms,...\n");
    return;
  }
  std::printf("%-14s %-5s %-8s %8s %8s %5s  %s\n", "matrix", "prec", "kind", "choice", "best", "x", "each route, ms");
}

absl::Status RunRoutes(Device& device, const std::vector<std::string>& names, const Flags& flags) {
  if (device.kind() != DeviceKind::kCuda) return absl::InvalidArgumentError("--routes: the CPU has one route");
  PrintRoutesHeader(flags);
  std::vector<RouteKind> kinds = RouteKinds();
  for (const std::string& name : names) {
    const absl::Status s = MeasureRoutesOfMatrix(device, name, flags, &kinds);
    if (!s.ok()) std::printf("%s: %s\n", name.c_str(), s.ToString().c_str());
    INTRAWARP_RETURN_IF_ERROR(device.health());
  }
  for (const RouteKind& kind : kinds) std::printf("# worst of %s: %.2f times the best\n", kind.name, kind.worst);
  return absl::OkStatus();
}

// INVALID_ARGUMENT for a flag that the kind of lines does not use.
absl::Status CheckAllUsed(const Flags& flags) {
  const bool is_galerkin = flags.galerkin > 0, of_products = !flags.masked && !flags.routes;
  const struct {
    const char* name;
    bool given, used;
  } rules[] = {
      {"--galerkin", is_galerkin, of_products},      {"--masked", flags.masked, !flags.routes},
      {"--kernels", flags.kernels, of_products},     {"--path", flags.path != MultiplyPath::kAuto, !flags.routes},
      {"--data", !flags.data.empty(), !is_galerkin}, {"--matrix", !flags.matrices.empty(), !is_galerkin}};
  for (const auto& rule : rules) {
    if (!rule.given || rule.used) continue;
    const char* kind = is_galerkin && of_products ? "--galerkin" : flags.routes ? "--routes" : "--masked";
    return absl::InvalidArgumentError(absl::StrCat(rule.name, ": has no use with ", kind));
  }
  for (const std::string& name : flags.precisions) {
    const bool known = std::any_of(std::begin(kPrecisions), std::end(kPrecisions),
                                   [&](const PrecisionRow& row) { return name == row.name; });
    if (!known) return absl::InvalidArgumentError(absl::StrCat("--precision: there is no ", name));
  }
  return absl::OkStatus();
}

absl::Status CheckOnDevice(const Device& device, const Flags& flags) {
  if (device.kind() == DeviceKind::kCuda) return absl::OkStatus();
  if (flags.kernels) return absl::InvalidArgumentError("--kernels: only a GPU has them");
  if (flags.path != MultiplyPath::kAuto) return absl::InvalidArgumentError("--path: the CPU has one");
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  INTRAWARP_RETURN_IF_ERROR(CheckAllUsed(flags));
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(flags.device));
  INTRAWARP_RETURN_IF_ERROR(CheckOnDevice(*device, flags));
  std::vector<std::string> names = flags.matrices;
  if (names.empty()) {
    names = {"fem27x3_25", "fem27x6_18", "stencil27_64", "band_9506", "lap2d_725", "cage_130k", "rmat_500k"};
    std::vector<std::string> files;
    if (!flags.data.empty()) {
      for (const auto& file : std::filesystem::directory_iterator(flags.data)) {
        const std::string name = file.path().filename().string();
        if (name.find(".mtx") != std::string::npos) files.push_back(name);
      }
    }
    std::sort(files.begin(), files.end());
    names.insert(names.end(), files.begin(), files.end());
  }
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned, OwnedContext::Create(*device, 1));
  INTRAWARP_ASSIGN_OR_RETURN(const double bytes_per_second, BytesPerSecond(owned.context()));
  std::printf("# %s, %s: copy at %.0f GB/s read and written, median of %d\n", device->name().c_str(),
              device->model().c_str(), bytes_per_second * 1e-9, flags.RepeatsOn(*device));
  if (flags.routes) return RunRoutes(*device, names, flags);
  flags.masked ? PrintMaskedHeader(flags) : PrintHeader(flags);
  if (flags.galerkin > 0) return MeasureGalerkin(*device, flags, bytes_per_second);
  for (const std::string& name : names) {
    const absl::Status s = flags.masked ? MeasureMaskedMatrix(*device, name, flags)
                                        : MeasureMatrix(*device, name, flags, bytes_per_second);
    if (!s.ok()) std::printf("%s: %s\n", name.c_str(), s.ToString().c_str());
    INTRAWARP_RETURN_IF_ERROR(device->health());
  }
  return absl::OkStatus();
}

bool ParseFlag(absl::string_view arg, Flags* flags) {
  if (arg == "--csv") return flags->csv = true;
  if (arg == "--kernels") return flags->kernels = true;
  if (arg == "--masked") return flags->masked = true;
  if (arg == "--routes") return flags->routes = true;
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(arg, absl::MaxSplits('=', 1));
  const std::string value(parts.second);
  if (parts.first == "--device") return flags->device = value, true;
  if (parts.first == "--galerkin") return absl::SimpleAtoi(value, &flags->galerkin) && flags->galerkin > 1;
  if (parts.first == "--data") return flags->data = value, true;
  if (parts.first == "--matrix") return flags->matrices = absl::StrSplit(value, ','), true;
  if (parts.first == "--precision") return flags->precisions = absl::StrSplit(value, ','), true;
  if (parts.first == "--path") {
    flags->path = value == "scalar"  ? MultiplyPath::kScalar
                  : value == "tiles" ? MultiplyPath::kTiles
                  : value == "reuse" ? MultiplyPath::kReusePlan
                                     : MultiplyPath::kAuto;
    return value == "auto" || value == "scalar" || value == "tiles" || value == "reuse";
  }
  return parts.first == "--repeats" && absl::SimpleAtoi(value, &flags->repeats.emplace()) && *flags->repeats > 0;
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  intrawarp::Flags flags;
  for (int i = 1; i < argc; ++i) {
    if (intrawarp::ParseFlag(argv[i], &flags)) continue;
    std::fprintf(stderr, "%s: what is that?\n", argv[i]);
    return 2;
  }
  const absl::Status status = intrawarp::Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
