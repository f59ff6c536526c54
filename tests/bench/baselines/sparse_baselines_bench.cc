// SPDX-License-Identifier: Apache-2.0
// The comparison of sparse products by Zachariadis (2020, chapter 3, tSparse) beside ours, on a GPU in one run: A A in
// fp32 and fp16.
//
//   sparse_baselines_bench [--data=FOLDER] [--matrix=NAME[,NAME...]] [--method=NAME[,NAME...]] [--repeats=20]
//                      [--measurement=SECONDS] [--budget=SECONDS] [--chunk=FRACTION] [--csv]
//
// Matrices are those of table 3.1: from FOLDER where it has NAME.mtx or NAME.mtx.gz, otherwise made in the same shape
// (sparse_shapes.h), then the folder's other square ones. --matrix takes their names and those of sparse_bench's made
// ones (fem27x3_25). Methods (sparse_variants.h): tSparse as published, its variant without tensor cores, ESC of single
// values, cuSPARSE by each of its algorithms and SpGEMMreuse, and ours: fp32, the values of a plan, fp16.
//
// A method is timed on a matrix after its results have been held against our fp64 product: the pattern exactly (the
// tile methods drop entries that cancel), every value within the bound of its precision, and every value exactly on
// small integers. Times are medians between events of warm runs, in ms, 20 of them or as many as --measurement seconds
// hold, at least 5:
//   CSR-CSR   from CSR to CSR: with conversions, symbolic phases, plans, allocations from the pool
//   product   without: of tiles to tiles, of values alone for cu-reuse and ours-plan, for cuSPARSE with
//             buffers allocated and, but for ALG2 and ALG3, sizes known before
// GF/s is two flops a scalar product over CSR-CSR. MB is the peak of the pool over one CSR-CSR run, operands left out
// (in cuSPARSE's is a copy of A's row offsets with 32 bits). The error is the largest of (|C - exact|) / (|A| |B|),
// also given over its bound. Matrices left when --budget seconds have passed are named and left out.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"
#include "engine/device/device.h"
#include "io/format/matrix_market.h"
#include "tests/bench/baselines/sparse_shapes.h"
#include "tests/bench/baselines/sparse_variants.h"
#include "tests/bench/baselines/table.h"
#include "tests/bench/baselines/timing.h"
#include "tests/bench/sparse_generators.h"

namespace intrawarp::baselines {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kFewestRepeats = 5;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Flags {
  std::string data;
  std::vector<std::string> matrices;
  std::vector<SparseMethod> methods;
  int repeats = 20;
  double measurement = 0.3, budget = 55, chunk = 0.2;
  bool csv = false;
};

struct Matrix {
  std::string name, source;
  HostCsr<double> values;
  const PaperMatrix* published = nullptr;
  bool known = false;  // the published counts must come out
};

struct Row {
  SparseMethod method = SparseMethod::kOurs;
  double end_to_end = NAN, product = NAN;  // seconds
  double peak_bytes = NAN;
  int repeats = 0;
  SparseErrors errors;
  TileCounts tiles;
  std::string note;
  bool wrong = false;
};

struct Counts {
  int64_t rows, entries, products, c_entries;
};

// 1, 2 or 3: exact in fp16, and so are sums of their products in fp32.
std::vector<float> SmallIntegers(int64_t count) {
  std::vector<float> values(count);
  uint32_t state = 1;
  for (float& v : values) {
    state = state * 1664525 + 1013904223;
    v = static_cast<float>(1 + (state >> 16) % 3);
  }
  return values;
}

class MatrixBench {
 public:
  MatrixBench(const ExecContext& ctx, const Flags& flags) : ctx_(ctx), flags_(flags) {}

  absl::StatusOr<std::vector<Row>> Measure(const Matrix& matrix, Counts* counts) {
    const std::vector<double>& values = matrix.values.values;
    HostCsr<float> host{matrix.values.rows, matrix.values.columns, matrix.values.row_offsets,
                        matrix.values.column_indices, std::vector<float>(values.begin(), values.end())};
    std::vector<Row> rows;
    for (SparseMethod method : flags_.methods) rows.emplace_back().method = method;
    const std::vector<float> real = std::exchange(host.values, SmallIntegers(host.entries()));
    INTRAWARP_RETURN_IF_ERROR(ForRows(host, rows, [&](const ConstCsrView& a, SparseReference& reference, Row& row) {
      return Check(a, reference, SparseCheck::kExact, row);
    }));
    host.values = real;
    INTRAWARP_RETURN_IF_ERROR(ForRows(host, rows, [&](const ConstCsrView& a, SparseReference& reference, Row& row) {
      *counts = {a.rows, a.entries, reference.products(), reference.entries()};
      const SparseCheck check = RoundsToFp16(row.method) ? SparseCheck::kFp16 : SparseCheck::kFp32;
      INTRAWARP_RETURN_IF_ERROR(Check(a, reference, check, row));
      return Time(a, row);
    }));
    return rows;
  }

 private:
  using RowWork = std::function<absl::Status(const ConstCsrView&, SparseReference&, Row&)>;

  // A refusal becomes the note of the method's row.
  absl::Status ForRows(const HostCsr<float>& host, std::vector<Row>& rows, const RowWork& work) {
    INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix a, CsrMatrix::Upload(ctx_.device(), ctx_.stream(), host));
    INTRAWARP_ASSIGN_OR_RETURN(const auto reference, MakeSparseReference(ctx_, a.view(), a.view()));
    for (Row& row : rows) {
      if (!row.note.empty()) continue;
      const absl::Status status = work(a.view(), *reference, row);
      if (!status.ok()) row.note = status.ToString();
      INTRAWARP_RETURN_IF_ERROR(ctx_.device().health());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<SparseProduct>> Make(const ConstCsrView& a, SparseMethod method) {
    return MakeSparseProduct(ctx_, method, a, a, static_cast<float>(flags_.chunk));
  }

  static absl::Status RunWhole(SparseProduct& product) {
    INTRAWARP_RETURN_IF_ERROR(product.Prepare());
    INTRAWARP_RETURN_IF_ERROR(product.Run());
    return product.Finish();
  }

  absl::Status Check(const ConstCsrView& a, SparseReference& reference, SparseCheck check, Row& row) {
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Synchronize(ctx_.stream()));
    const int64_t before = PoolUsedBytes();
    TakePoolPeakBytes();
    INTRAWARP_ASSIGN_OR_RETURN(const auto product, Make(a, row.method));
    INTRAWARP_RETURN_IF_ERROR(RunWhole(*product));
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Synchronize(ctx_.stream()));
    row.peak_bytes = static_cast<double>(TakePoolPeakBytes() - before);
    row.tiles = product->Tiles();
    INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix c, product->Result());
    // All integers are positive: nothing cancels.
    const bool zeros_may_lack = IsTiles(row.method) && check != SparseCheck::kExact;
    INTRAWARP_ASSIGN_OR_RETURN(row.errors, reference.Compare(c, check, zeros_may_lack));
    if (row.errors.ok()) return absl::OkStatus();
    row.wrong = true;
    return absl::InternalError(absl::StrCat("WRONG", check == SparseCheck::kExact ? " on integers" : "", ": ",
                                            row.errors.pattern, " entries of the pattern, ", row.errors.values,
                                            " values, ", row.errors.of_bound, " of the bound"));
  }

  absl::Status Time(const ConstCsrView& a, Row& row) {
    INTRAWARP_ASSIGN_OR_RETURN(const auto product, Make(a, row.method));
    INTRAWARP_RETURN_IF_ERROR(RunWhole(*product));
    INTRAWARP_ASSIGN_OR_RETURN(row.end_to_end, Median([&] { return RunWhole(*product); }, &row.repeats));
    INTRAWARP_RETURN_IF_ERROR(product->Prepare());
    INTRAWARP_RETURN_IF_ERROR(product->Run());
    int repeats = 0;
    INTRAWARP_ASSIGN_OR_RETURN(row.product, Median([&] { return product->Run(); }, &repeats));
    return absl::OkStatus();
  }

  absl::StatusOr<double> Median(const Work& work, int* repeats) {
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Synchronize(ctx_.stream()));
    const Clock::time_point begin = Clock::now();
    INTRAWARP_RETURN_IF_ERROR(work());
    INTRAWARP_RETURN_IF_ERROR(ctx_.device().Synchronize(ctx_.stream()));
    const double wanted = flags_.measurement / SecondsSince(begin);
    *repeats = static_cast<int>(std::clamp<double>(wanted, std::min(kFewestRepeats, flags_.repeats), flags_.repeats));
    return MedianSeconds(ctx_, *repeats, work);
  }

  const ExecContext& ctx_;
  const Flags& flags_;
};

double GigaFlops(const Counts& counts, double seconds) { return 2e-9 * counts.products / seconds; }

void Print(const Matrix& matrix, const Counts& counts, const std::vector<Row>& rows) {
  std::string title = absl::StrCat(matrix.name, " (", matrix.source, "): ", counts.rows, " rows, nnz(A) ",
                                   counts.entries, ", products ", counts.products, ", nnz(C) ", counts.c_entries);
  if (matrix.published != nullptr && !matrix.known) {
    absl::StrAppend(&title, "; the published one has ", matrix.published->rows, ", ", matrix.published->entries, ", ",
                    matrix.published->products, ", ", matrix.published->c_entries);
  }
  Table table(title, {"CSR-CSR ms", "GF/s", "product ms", "MB", "error", "of bound"}, "%.4g");
  for (const Row& row : rows) {
    const bool timed = !std::isnan(row.end_to_end);
    table.Add(SparseMethodName(row.method), {row.end_to_end * 1e3, GigaFlops(counts, row.end_to_end), row.product * 1e3,
                                             timed ? row.peak_bytes * 1e-6 : NAN, timed ? row.errors.largest : NAN,
                                             timed ? row.errors.of_bound : NAN});
  }
  table.Print();
  for (const Row& row : rows) {
    if (!row.note.empty()) std::printf("  %s: %s\n", SparseMethodName(row.method), row.note.c_str());
    if (!row.errors.sorted) std::printf("  %s: columns come unsorted\n", SparseMethodName(row.method));
    if (row.method != SparseMethod::kTensorTiles || row.tiles.tasks == 0) continue;
    std::printf("  tSparse: %lld tiles of C from %lld tasks", static_cast<long long>(row.tiles.tiles),
                static_cast<long long>(row.tiles.tasks));
    if (matrix.published != nullptr) {
      std::printf("; published: %lld from %lld", static_cast<long long>(matrix.published->c_tiles),
                  static_cast<long long>(matrix.published->tasks));
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

void PrintCsv(const Matrix& matrix, const Counts& counts, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    std::printf("%s,%s,%s,%lld,%lld,%lld,%lld,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%d,%d,%s\n", matrix.name.c_str(),
                matrix.source.c_str(), SparseMethodName(row.method), static_cast<long long>(counts.rows),
                static_cast<long long>(counts.entries), static_cast<long long>(counts.products),
                static_cast<long long>(counts.c_entries), row.end_to_end * 1e3, GigaFlops(counts, row.end_to_end),
                row.product * 1e3, row.peak_bytes * 1e-6, row.errors.largest, row.errors.of_bound, row.errors.sorted,
                row.repeats, row.note.c_str());
  }
  std::fflush(stdout);
}

// Their time over ours, for all matrices.
class Ratios {
 public:
  void Add(double theirs, double ours) {
    if (!std::isnan(theirs) && !std::isnan(ours)) logs_.push_back(std::log(theirs / ours));
  }
  double Mean() const {
    double sum = 0;
    for (double l : logs_) sum += l;
    return logs_.empty() ? NAN : std::exp(sum / logs_.size());
  }
  double Least() const { return logs_.empty() ? NAN : std::exp(*std::min_element(logs_.begin(), logs_.end())); }
  double Most() const { return logs_.empty() ? NAN : std::exp(*std::max_element(logs_.begin(), logs_.end())); }
  double Count() const { return static_cast<double>(logs_.size()); }

 private:
  std::vector<double> logs_;
};

class Summary {
 public:
  void Add(const std::vector<Row>& rows) {
    const auto of = [&](SparseMethod method, double Row::*time) {
      for (const Row& row : rows) {
        if (row.method == method) return row.*time;
      }
      return static_cast<double>(NAN);
    };
    for (const Row& row : rows) {
      const SparseMethod ours = RoundsToFp16(row.method) ? SparseMethod::kOursFp16 : SparseMethod::kOurs;
      whole_[row.method].Add(row.end_to_end, of(ours, &Row::end_to_end));
      const bool of_values = row.method == SparseMethod::kCusparseReuse || row.method == SparseMethod::kOursValues;
      product_[row.method].Add(row.product, of(of_values ? SparseMethod::kOursValues : ours, &Row::product));
    }
  }

  void Print() {
    Table table("Over ours at equal precision (above 1: ours is faster); products of cu-reuse over ours-plan's",
                {"matrices", "CSR-CSR", "least", "most", "product", "least", "most"}, "%.3g");
    for (SparseMethod method : kSparseMethods) {
      const Ratios &w = whole_[method], &p = product_[method];
      if (w.Count() == 0) continue;
      table.Add(SparseMethodName(method), {w.Count(), w.Mean(), w.Least(), w.Most(), p.Mean(), p.Least(), p.Most()});
    }
    table.Print();
  }

 private:
  std::map<SparseMethod, Ratios> whole_, product_;
};

absl::Status CheckKnown(const Matrix& matrix, const Counts& counts, const std::vector<Row>& rows) {
  if (!matrix.known) return absl::OkStatus();
  const PaperMatrix& published = *matrix.published;
  const auto differs = [&](const char* what, int64_t got, int64_t expected) {
    return absl::InternalError(absl::StrCat(matrix.name, ": ", what, " ", got, ", table 3.1 has ", expected));
  };
  if (counts.c_entries != published.c_entries) return differs("nnz(C)", counts.c_entries, published.c_entries);
  if (counts.products != published.products) return differs("products", counts.products, published.products);
  for (const Row& row : rows) {
    if (!IsTiles(row.method) || std::isnan(row.end_to_end)) continue;
    if (row.tiles.tasks != published.tasks) return differs("tasks", row.tiles.tasks, published.tasks);
    if (row.tiles.tiles != published.c_tiles) return differs("tiles of C", row.tiles.tiles, published.c_tiles);
  }
  return absl::OkStatus();
}

absl::StatusOr<Matrix> Load(const std::string& name, const Flags& flags) {
  Matrix matrix;
  matrix.name = name;
  matrix.source = "made";
  for (const PaperMatrix& published : PaperMatrices()) {
    if (published.name != name) continue;
    bool from_file = false;
    INTRAWARP_ASSIGN_OR_RETURN(matrix.values, LoadPaperMatrix(published, flags.data, &from_file));
    matrix.published = &published;
    matrix.known = from_file || published.same_pattern;
    if (from_file) matrix.source = "file";
    return matrix;
  }
  for (const char* ending : {".mtx", ".mtx.gz"}) {
    const std::filesystem::path path = std::filesystem::path(flags.data) / (name + ending);
    if (flags.data.empty() || !std::filesystem::exists(path)) continue;
    INTRAWARP_ASSIGN_OR_RETURN(const HostCoo coo, io::ReadMatrixMarket(path.string()));
    INTRAWARP_ASSIGN_OR_RETURN(matrix.values, CsrFromCoo<double>(coo));
    matrix.source = "file";
    return matrix;
  }
  INTRAWARP_ASSIGN_OR_RETURN(matrix.values, MatrixByName(name, 1));
  return matrix;
}

std::vector<std::string> AllNames(const std::string& folder) {
  std::vector<std::string> names, others;
  for (const PaperMatrix& published : PaperMatrices()) names.push_back(published.name);
  if (folder.empty()) return names;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string(), stem = name.substr(0, name.find(".mtx"));
    if (stem != name && std::find(names.begin(), names.end(), stem) == names.end()) others.push_back(stem);
  }
  std::sort(others.begin(), others.end());
  names.insert(names.end(), others.begin(), others.end());
  return names;
}

// Whether every result was right.
absl::StatusOr<bool> Bench(const ExecContext& ctx, const Flags& flags) {
  const Clock::time_point begin = Clock::now();
  bool right = true;
  Summary summary;
  if (flags.csv) {
    std::printf(
        "matrix,source,method,rows,nnz_a,products,nnz_c,csr_to_csr_ms,gflops,product_ms,peak_mb,error,of_bound,sorted,"
        "repeats,note\n");
  }
  for (const std::string& name : flags.matrices.empty() ? AllNames(flags.data) : flags.matrices) {
    if (SecondsSince(begin) > flags.budget) {
      std::printf("%s: left out, the budget is used up\n", name.c_str());
      continue;
    }
    const auto matrix = Load(name, flags);
    if (!matrix.ok() || matrix->values.rows != matrix->values.columns) {
      std::printf("%s: %s\n", name.c_str(), matrix.ok() ? "not square" : matrix.status().ToString().c_str());
      continue;
    }
    Counts counts{};
    INTRAWARP_ASSIGN_OR_RETURN(const std::vector<Row> rows, MatrixBench(ctx, flags).Measure(*matrix, &counts));
    flags.csv ? PrintCsv(*matrix, counts, rows) : Print(*matrix, counts, rows);
    summary.Add(rows);
    const absl::Status known = CheckKnown(*matrix, counts, rows);
    if (!known.ok()) std::printf("WRONG %s\n", known.ToString().c_str());
    right = right && known.ok() && std::none_of(rows.begin(), rows.end(), [](const Row& row) { return row.wrong; });
  }
  if (!flags.csv) summary.Print();
  return right;
}

absl::StatusOr<std::vector<SparseMethod>> Methods(const std::string& names) {
  std::vector<SparseMethod> methods;
  if (names.empty()) return std::vector<SparseMethod>(std::begin(kSparseMethods), std::end(kSparseMethods));
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, ','))) {
    const auto found = std::find_if(std::begin(kSparseMethods), std::end(kSparseMethods),
                                    [&](SparseMethod m) { return name == SparseMethodName(m); });
    if (found == std::end(kSparseMethods)) return absl::InvalidArgumentError(absl::StrCat("method: no ", name));
    methods.push_back(*found);
  }
  return methods;
}

CommandSyntax Syntax() {
  FlagSpec data{"data", FlagType::kString, "FOLDER", "Matrix Market files, NAME.mtx or NAME.mtx.gz"};
  FlagSpec matrix{"matrix", FlagType::kString, "NAME,...", "these alone"};
  FlagSpec method{"method", FlagType::kString, "NAME,...", "these alone"};
  FlagSpec repeats{"repeats", FlagType::kInteger, "N", "runs that a median is taken of (20)"};
  repeats.minimum = 1;
  repeats.maximum = 1000;
  FlagSpec measurement{"measurement", FlagType::kNumber, "SECONDS",
                       "fewer runs, but five, where they take longer (0.3)"};
  measurement.minimum = 0;
  FlagSpec budget{"budget", FlagType::kNumber, "SECONDS", "no other matrix is begun after this (55)"};
  budget.minimum = 0;
  FlagSpec chunk{"chunk", FlagType::kNumber, "FRACTION", "of the products that cu-ALG3 makes at a time (0.2)"};
  chunk.minimum = 1e-6;
  chunk.maximum = 1;
  FlagSpec csv{"csv", FlagType::kSwitch, "", "lines to be read by programs instead of tables"};
  return {{data, matrix, method, repeats, measurement, budget, chunk, csv}};
}

absl::StatusOr<Flags> Parse(const std::vector<std::string>& arguments) {
  INTRAWARP_ASSIGN_OR_RETURN(const ParsedFlags parsed, ParseFlags(Syntax(), arguments));
  Flags flags;
  flags.data = parsed.String("data");
  if (parsed.Has("matrix")) flags.matrices = absl::StrSplit(parsed.String("matrix"), ',');
  INTRAWARP_ASSIGN_OR_RETURN(flags.methods, Methods(parsed.String("method")));
  flags.repeats = static_cast<int>(parsed.Integer("repeats", flags.repeats));
  flags.measurement = parsed.Number("measurement", flags.measurement);
  flags.budget = parsed.Number("budget", flags.budget);
  flags.chunk = parsed.Number("chunk", flags.chunk);
  const bool has_chunks =
      std::find(flags.methods.begin(), flags.methods.end(), SparseMethod::kCusparse3) != flags.methods.end();
  if (parsed.Has("chunk") && !has_chunks) return absl::InvalidArgumentError("chunk: only cu-ALG3 uses it");
  flags.csv = parsed.Has("csv");
  return flags;
}

absl::StatusOr<bool> Run(const Flags& flags) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice("cuda"));
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned, OwnedContext::Create(*device, 1));
  if (!flags.csv)
    std::printf("%s: %s, medians of %d\n", device->name().c_str(), device->model().c_str(), flags.repeats);
  const ExecContext ctx = owned.context();
  return Bench(ctx, flags);
}

}  // namespace

int Main(int argc, char** argv) {
  const auto flags = Parse(std::vector<std::string>(argv + 1, argv + argc));
  if (!flags.ok()) {
    std::cerr << flags.status().message() << "\n" << FlagHelp(Syntax());
    return 2;
  }
  const auto right = Run(*flags);
  if (!right.ok()) std::cerr << right.status() << "\n";
  return right.ok() && *right ? 0 : 1;
}

}  // namespace intrawarp::baselines

int main(int argc, char** argv) { return intrawarp::baselines::Main(argc, argv); }
