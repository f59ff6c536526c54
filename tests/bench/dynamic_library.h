// SPDX-License-Identifier: Apache-2.0
// A library that is looked for when a program runs, so that the program starts without it.
#ifndef INTRAWARP_TESTS_BENCH_DYNAMIC_LIBRARY_H_
#define INTRAWARP_TESTS_BENCH_DYNAMIC_LIBRARY_H_

#include <dlfcn.h>

#include <initializer_list>

namespace intrawarp {

// Stays loaded. Thread-safe.
class DynamicLibrary {
 public:
  // The first of `paths` that can be loaded.
  explicit DynamicLibrary(std::initializer_list<const char*> paths) {
    for (const char* path : paths) {
      if (handle_ == nullptr) handle_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
  }
  bool found() const { return handle_ != nullptr; }
  // The function of a name; null when there is none.
  template <typename F>
  F* Function(const char* name) const {
    return reinterpret_cast<F*>(dlsym(handle_, name));
  }

 private:
  void* handle_ = nullptr;
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_DYNAMIC_LIBRARY_H_
