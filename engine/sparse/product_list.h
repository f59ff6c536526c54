// SPDX-License-Identifier: Apache-2.0
// The products of each entry of C as a list, in device memory. Part of a plan; multiply_list.h makes and executes it.
#ifndef INTRAWARP_ENGINE_SPARSE_PRODUCT_LIST_H_
#define INTRAWARP_ENGINE_SPARSE_PRODUCT_LIST_H_

#include <cstdint>

#include "engine/device/device.h"

namespace intrawarp {

// `pairs`: 8 bytes a product, the lists one after another in the order of C's entries (within pieces in another);
// `starts`: where each list begins, and their end; `bases`: the first place in A of each block of entries.
struct ProductList {
  Buffer pairs, starts, bases;

  bool empty() const { return pairs.empty(); }
  int64_t products() const { return static_cast<int64_t>(pairs.bytes() / 8); }
  int64_t bytes() const { return static_cast<int64_t>(pairs.bytes() + starts.bytes() + bases.bytes()); }
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SPARSE_PRODUCT_LIST_H_
