// SPDX-License-Identifier: Apache-2.0
// The products of each entry of C as a list, for plans that are executed again and again: a value is then the sum over
// its list of a[first] * b[second], without looking for its place. Internal to multiply_cuda.cu.
//
// An execution reads 8 bytes a product and 8 bytes an entry, and gathers the values of A and B, from the L2 cache where
// they fit. Products are made piece by piece of the lists of neighbouring entries, in the order in which rows of B are
// read, and summed from shared memory. Sums have one order: by pieces, within a piece k ascending, or by a few threads
// whose sums are joined pairwise where lists are long.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_LIST_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_LIST_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/multiply.h"
#include "engine/sparse/product_list.h"

namespace intrawarp::cuda {

// More than these are never listed.
inline constexpr int64_t kMostListed = int64_t{1} << 29;

// Of a product whose pattern is known: `c` has columns, `products` is their number. Every product falls on an entry of
// C. Allocates what MostListBytes says, most of it until it returns. The list is empty where neighbouring entries have
// products too far apart in A. RESOURCE_EXHAUSTED, or INVALID_ARGUMENT for more products than kMostListed. Waits.
absl::Status ListProducts(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          const ConstPatternView& c, int64_t products, ProductList* list);
// At most, of so many products and entries of A and C.
int64_t MostListBytes(int64_t products, int64_t a_entries, int64_t entries);

// The values of all entries, times alpha.
absl::Status ExecuteList(const ExecContext& ctx, const ProductList& list, int64_t entries, const ConstCsrView& a,
                         const ConstCsrView& b, Semiring semiring, double alpha, void* values);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_LIST_H_
