// SPDX-License-Identifier: Apache-2.0
// intrawarp matrix put | list | get | delete, multiply
#include <cstdio>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/files.h"
#include "client/cli/matrix_files.h"
#include "client/cli/message_json.h"
#include "client/cli/report_json.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::cli {
namespace {

const char kTypes[] = "float32|float64";

absl::Status Put(const ParsedFlags& flags, CommandContext& context) {
  const std::string path = flags.Positional(0);
  if (flags.Has("pattern") && !IsMatrixName(flags.String("pattern"))) {
    return UsageError(absl::InvalidArgumentError("--pattern: must be matrices/ID"));
  }
  const bool is_double = flags.String("values", "float32") == "float64";
  INTRAWARP_ASSIGN_OR_RETURN(const client::SparseMatrix matrix,
                             LoadMatrix(path, is_double ? ValueType::kFloat64 : ValueType::kFloat32));
  const std::string id = flags.String("id");
  const std::string pattern = WireMatrixName(flags.String("pattern"));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::UploadResponse uploaded,
                             flags.Has("pattern") ? context.UploadMatrixValues(matrix, pattern, path, id)
                                                  : context.UploadMatrix(matrix, path, id));
  std::printf("%s\n", ShownMatrixNames(uploaded.sparse_matrix().name()).c_str());
  return absl::OkStatus();
}

absl::Status List(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<v1::SparseMatrix> matrices,
                             context.client().ListSparseMatrices(context.call()));
  if (flags.Has("json")) {
    context.PrintJson(ListToJson(matrices));
    return absl::OkStatus();
  }
  for (const v1::SparseMatrix& matrix : matrices) {
    const v1::SparseMatrixShape& shape = matrix.shape();
    std::printf("%s\t%lldx%lld\t%lld entries\t%s\t%lld bytes%s\n", ShownMatrixNames(matrix.name()).c_str(),
                static_cast<long long>(shape.rows()), static_cast<long long>(shape.columns()),
                static_cast<long long>(shape.entries()),
                shape.value_type() == v1::VALUE_TYPE_FLOAT64 ? "float64" : "float32",
                static_cast<long long>(matrix.resident_bytes()), OwnerColumn(matrix.owner()).c_str());
  }
  return absl::OkStatus();
}

absl::Status Download(const std::string& name, const std::string& out, CommandContext& context) {
  client::SparseMatrix matrix;
  INTRAWARP_RETURN_IF_ERROR(context.client().DownloadSparseMatrix(name, &matrix, context.call()).status());
  return SaveMatrix(out, matrix);
}

absl::Status Get(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", {".mtx", ".mtx.gz"}));
  return Download(WireMatrixName(flags.Positional(0)), flags.String("out"), context);
}

absl::Status Delete(const ParsedFlags& flags, CommandContext& context) {
  return context.client().DeleteSparseMatrix(WireMatrixName(flags.Positional(0)), context.call());
}

v1::Precision PrecisionFromName(const std::string& name) {
  if (name == "fp16") return v1::PRECISION_FP16;
  if (name == "bf16") return v1::PRECISION_BF16;
  if (name == "tf32") return v1::PRECISION_TF32;
  if (name == "fp64") return v1::PRECISION_FP64;
  return v1::PRECISION_FP32;
}

ValueType ValueTypeFor(v1::Precision precision) {
  return precision == v1::PRECISION_FP64 ? ValueType::kFloat64 : ValueType::kFloat32;
}

v1::Semiring SemiringFromName(const std::string& name) {
  if (name == "or-and") return v1::SEMIRING_OR_AND;
  if (name == "min-plus") return v1::SEMIRING_MIN_PLUS;
  return v1::SEMIRING_PLUS_TIMES;
}

absl::Status CheckMultiplyFlags(const ParsedFlags& flags) {
  const auto wrong = [](const char* what) { return UsageError(absl::InvalidArgumentError(what)); };
  if (!flags.Has("out") && !flags.Has("keep")) return wrong("--out: is missing");
  if (flags.Has("b") && flags.Has("p")) return wrong("--p: a product of three matrices has no --b");
  if (flags.Has("r") && !flags.Has("p")) return wrong("--r: goes with --p");
  if (flags.Has("request_id") && !flags.Has("detach")) return wrong("--request_id: goes with --detach");
  if (flags.Has("detach") && !flags.Has("keep")) return wrong("--detach: goes with --keep");
  if (flags.Has("detach") && flags.Has("out")) return wrong("--out: --detach does not wait for it");
  if (flags.Has("detach") && flags.Has("report")) return wrong("--report: --detach does not wait for it");
  if (flags.Has("beta") && !flags.Has("addend")) return wrong("--beta: only --addend has a factor");
  if (flags.Has("complement_mask") && !flags.Has("mask")) return wrong("--complement_mask: there is no --mask");
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "out", {".mtx", ".mtx.gz"}));
  return CheckOutput(flags, "report");
}

absl::StatusOr<v1::MultiplyOptions> MakeOptions(const ParsedFlags& flags, Temporaries& temporaries) {
  v1::MultiplyOptions options;
  options.set_precision(PrecisionFromName(flags.String("precision")));
  options.set_semiring(SemiringFromName(flags.String("semiring")));
  if (flags.Has("transpose_a")) options.set_transpose_a(true);
  if (flags.Has("complement_mask")) options.set_complement_mask(true);
  if (flags.Has("alpha")) options.set_alpha(flags.Number("alpha"));
  if (flags.Has("beta")) options.set_beta(flags.Number("beta"));
  if (flags.Has("reuse_plan")) options.set_reuse_plan(true);
  const ValueType type = ValueTypeFor(options.precision());
  if (flags.Has("mask")) {
    INTRAWARP_ASSIGN_OR_RETURN(*options.mutable_mask(), temporaries.Matrix(flags.String("mask"), type));
  }
  if (flags.Has("addend")) {
    INTRAWARP_ASSIGN_OR_RETURN(*options.mutable_addend(), temporaries.Matrix(flags.String("addend"), type));
  }
  return options;
}

absl::StatusOr<v1::MultiplyRequest> MakeRequest(const ParsedFlags& flags, Temporaries& temporaries) {
  v1::MultiplyRequest request;
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_options(), MakeOptions(flags, temporaries));
  if (flags.Has("keep")) request.mutable_keep()->set_id(flags.String("keep"));
  const ValueType type = ValueTypeFor(request.options().precision());
  const std::string a = flags.String("a");
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_a(), temporaries.Matrix(a, type));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_b(), temporaries.Matrix(flags.String("b", a), type));
  return request;
}

absl::StatusOr<v1::MultiplyTripleRequest> MakeTripleRequest(const ParsedFlags& flags, Temporaries& temporaries) {
  v1::MultiplyTripleRequest request;
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_options(), MakeOptions(flags, temporaries));
  if (flags.Has("keep")) request.mutable_keep()->set_id(flags.String("keep"));
  const ValueType type = ValueTypeFor(request.options().precision());
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_a(), temporaries.Matrix(flags.String("a"), type));
  INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_p(), temporaries.Matrix(flags.String("p"), type));
  if (flags.Has("r")) {
    INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_r(), temporaries.Matrix(flags.String("r"), type));
  }
  return request;
}

void ShowProgress(const v1::MultiplyProgress& progress, ProgressLine* line) {
  const bool planned = progress.step() != v1::MultiplyProgress::STEP_ESTIMATED;
  line->Show(absl::StrFormat("multiply: %d multiplications, %s%d entries", progress.estimate().multiplications(),
                             planned ? "" : "at most ",
                             planned ? progress.entries() : progress.estimate().max_entries()));
}

// The two methods of the client for requests of either kind.
absl::StatusOr<v1::Operation> StartOn(client::Client& client, v1::MultiplyRequest request,
                                      const client::CallOptions& call) {
  return client.StartMultiply(std::move(request), call);
}
absl::StatusOr<v1::Operation> StartOn(client::Client& client, v1::MultiplyTripleRequest request,
                                      const client::CallOptions& call) {
  return client.StartMultiplyTriple(std::move(request), call);
}
absl::StatusOr<v1::MultiplyResult> RunOn(client::Client& client, const v1::MultiplyRequest& request,
                                         const client::MultiplyProgressCallback& progress,
                                         client::SparseMatrix* product, const client::CallOptions& call) {
  return client.Multiply(request, progress, product, call);
}
absl::StatusOr<v1::MultiplyResult> RunOn(client::Client& client, const v1::MultiplyTripleRequest& request,
                                         const client::MultiplyProgressCallback& progress,
                                         client::SparseMatrix* product, const client::CallOptions& call) {
  return client.MultiplyTriple(request, progress, product, call);
}

// The matrices of a file are deleted at once: the work holds them as long as it needs them.
template <typename Request>
absl::Status StartMultiply(const ParsedFlags& flags, Request request, CommandContext& context,
                           Temporaries& temporaries) {
  request.set_request_id(flags.String("request_id"));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Operation operation,
                             StartOn(context.client(), std::move(request), context.call()));
  std::printf("%s\n", operation.name().c_str());
  std::fflush(stdout);
  return temporaries.DeleteAll();
}

template <typename Request>
absl::Status RunMultiply(const ParsedFlags& flags, const Request& request, CommandContext& context,
                         Temporaries& temporaries) {
  if (flags.Has("detach")) return StartMultiply(flags, request, context, temporaries);
  client::SparseMatrix product;
  ProgressLine line;
  INTRAWARP_ASSIGN_OR_RETURN(
      const v1::MultiplyResult result,
      RunOn(
          context.client(), request, [&line](const v1::MultiplyProgress& progress) { ShowProgress(progress, &line); },
          &product, context.call()));
  line.Clear();
  const absl::Status deleted = temporaries.DeleteAll();
  if (request.has_keep()) {
    std::printf("%s\n", ShownMatrixNames(result.sparse_matrix().name()).c_str());
    std::fflush(stdout);
  }
  if (flags.Has("report")) {
    const std::string out = flags.String("report");
    INTRAWARP_RETURN_IF_ERROR(Annotate(io::WriteSmallFile(out, JsonText(MultiplyReportToJson(result.report()))), out));
  }
  if (flags.Has("out")) {
    const std::string out = flags.String("out");
    INTRAWARP_RETURN_IF_ERROR(request.has_keep() ? Download(result.sparse_matrix().name(), out, context)
                                                 : SaveMatrix(out, product));
  }
  return deleted;
}

absl::Status Multiply(const ParsedFlags& flags, CommandContext& context) {
  INTRAWARP_RETURN_IF_ERROR(CheckMultiplyFlags(flags));
  Temporaries temporaries(context);
  if (flags.Has("p")) {
    INTRAWARP_ASSIGN_OR_RETURN(const v1::MultiplyTripleRequest request, MakeTripleRequest(flags, temporaries));
    return RunMultiply(flags, request, context, temporaries);
  }
  INTRAWARP_ASSIGN_OR_RETURN(const v1::MultiplyRequest request, MakeRequest(flags, temporaries));
  return RunMultiply(flags, request, context, temporaries);
}

std::vector<FlagSpec> MultiplyFlagSpecs() {
  return {
      {.name = "a", .placeholder = "A.mtx|matrices/ID", .help = "left factor", .required = true},
      {.name = "b", .placeholder = "B.mtx|matrices/ID", .help = "right factor; default: A"},
      {.name = "p", .placeholder = "P.mtx|matrices/ID", .help = "makes it a product of three: R op(A) P"},
      {.name = "r", .placeholder = "R.mtx|matrices/ID", .help = "with --p; default: P^T (Galerkin's product)"},
      {.name = "out", .placeholder = "C.mtx", .help = "the product, .mtx or .mtx.gz; may be left out with --keep"},
      {.name = "precision",
       .placeholder = "fp16|bf16|tf32|fp32|fp64",
       .help = "of the products; default fp32; fp64 takes float64 matrices",
       .choices = {"fp16", "bf16", "tf32", "fp32", "fp64"}},
      {.name = "semiring",
       .placeholder = "plus-times|or-and|min-plus",
       .help = "default plus-times",
       .choices = {"plus-times", "or-and", "min-plus"}},
      {.name = "transpose_a", .type = FlagType::kSwitch, .placeholder = "", .help = "A^T instead of A"},
      {.name = "mask", .placeholder = "M.mtx|matrices/ID", .help = "the only places where the product has entries"},
      {.name = "complement_mask", .type = FlagType::kSwitch, .placeholder = "", .help = "the places where it has none"},
      {.name = "alpha", .type = FlagType::kNumber, .placeholder = "V", .help = "factor of the product; default 1"},
      {.name = "addend", .placeholder = "D.mtx|matrices/ID", .help = "added to the product"},
      {.name = "beta", .type = FlagType::kNumber, .placeholder = "V", .help = "factor of the addend; default 1"},
      {.name = "reuse_plan",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help =
           "take the plan of an earlier product of resident matrices with these patterns, and leave it for later ones"},
      {.name = "keep", .placeholder = "ID", .help = "the product stays resident as matrices/ID, which is printed"},
      {.name = "report", .placeholder = "OUT.json", .help = "what was multiplied, and where the time went"},
      {.name = "detach",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "begin an operation, which goes on by itself; prints operations/ID (intrawarp operation wait)"},
      {.name = "request_id", .placeholder = "ID", .help = "with --detach: the wanted ID; default: a UUID"},
  };
}

}  // namespace

std::vector<Command> MatrixCommands() {
  return {
      {.name = "matrix put",
       .summary = "upload a sparse matrix (Matrix Market), where it stays resident; prints matrices/ID",
       .syntax = {.flags = {{.name = "id", .placeholder = "ID", .help = "the wanted id; default: the server's choice"},
                            {.name = "values",
                             .placeholder = kTypes,
                             .help = "their type; default float32",
                             .choices = {"float32", "float64"}},
                            {.name = "pattern",
                             .placeholder = "matrices/ID",
                             .help = "a resident matrix with entries at the same places, which is compared first: only "
                                     "the values are uploaded, and both share one pattern"}},
                  .positionals = {"PATH"}},
       .reach = Reach::kPlaced,
       .placed_by = {{"pattern", false}, {"", false}},
       .run = Put},
      {.name = "matrix list",
       .summary = "list resident matrices: name, size, entries, type of the values, device memory, owner",
       .syntax = {.flags = {JsonFlagSpec()}},
       .reach = Reach::kEach,
       .run = List},
      {.name = "matrix get",
       .summary = "download a matrix as Matrix Market",
       .syntax = {.flags = {{.name = "out", .placeholder = "PATH", .help = ".mtx or .mtx.gz", .required = true}},
                  .positionals = {"matrices/ID"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Get},
      {.name = "matrix delete",
       .summary = "delete a matrix",
       .syntax = {.flags = {}, .positionals = {"matrices/ID"}},
       .reach = Reach::kPlaced,
       .placed_by = {{""}},
       .run = Delete},
      {.name = "multiply",
       .summary = "multiply sparse matrices: C = alpha op(A) B + beta D, or C = alpha R op(A) P + beta D",
       .syntax = {.flags = MultiplyFlagSpecs()},
       .reach = Reach::kPlaced,
       .placed_by = {{"a", false}, {"b", false}, {"p", false}, {"r", false}, {"mask", false}, {"addend", false}},
       .run = Multiply,
       .notes = "A file is Matrix Market (.mtx, .mtx.gz); it is uploaded, used and deleted.\n"},
  };
}

}  // namespace intrawarp::cli
