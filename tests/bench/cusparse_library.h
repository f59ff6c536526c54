// SPDX-License-Identifier: Apache-2.0
// cuSPARSE, looked for when a program runs, so that it starts without the library. In builds with CUDA.
#ifndef INTRAWARP_TESTS_BENCH_CUSPARSE_LIBRARY_H_
#define INTRAWARP_TESTS_BENCH_CUSPARSE_LIBRARY_H_

#include <cusparse.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/bench/dynamic_library.h"

namespace intrawarp {

// cuSPARSE's functions, by name. Thread-safe.
inline const DynamicLibrary& CusparseLibrary() {
  static const auto* const library = new DynamicLibrary(
      {"libcusparse.so.12", "/usr/local/cuda/lib64/libcusparse.so.12", "/usr/local/cuda/lib/libcusparse.so.12"});
  return *library;
}

// RESOURCE_EXHAUSTED where it has too little memory, INTERNAL for what else it refuses.
inline absl::Status CusparseStatus(cusparseStatus_t status, const char* call) {
  if (status == CUSPARSE_STATUS_SUCCESS) return absl::OkStatus();
  const bool memory = status == CUSPARSE_STATUS_ALLOC_FAILED || status == CUSPARSE_STATUS_INSUFFICIENT_RESOURCES;
  return absl::Status(memory ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                      absl::StrCat(call, ": status ", static_cast<int>(status)));
}

#define INTRAWARP_CUSPARSE(name, ...)                                                                            \
  do {                                                                                                           \
    auto* const intrawarp_function_ = ::intrawarp::CusparseLibrary().Function<decltype(name)>(#name);            \
    if (intrawarp_function_ == nullptr) return absl::NotFoundError(#name);                                       \
    const absl::Status intrawarp_status_ = ::intrawarp::CusparseStatus(intrawarp_function_(__VA_ARGS__), #name); \
    if (!intrawarp_status_.ok()) return intrawarp_status_;                                                       \
  } while (false)

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_CUSPARSE_LIBRARY_H_
