// SPDX-License-Identifier: Apache-2.0
#include "io/file/digest.h"

#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>

namespace intrawarp::io {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

namespace {

// libcrypto fails here only without memory or without SHA-256, and no caller can continue then.
void CheckCrypto(int result) {
  if (result == 1) return;
  std::fputs("libcrypto: SHA-256 failed\n", stderr);
  std::abort();
}

}  // namespace

Sha256::Sha256() : state_(std::make_unique<State>()) {
  CheckCrypto(state_->context != nullptr);
  CheckCrypto(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(const void* data, size_t size) {
  if (size > 0) CheckCrypto(EVP_DigestUpdate(state_->context, data, size));
}

std::string Sha256::Finish() {
  std::string digest(kBytes, '\0');
  CheckCrypto(EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(digest.data()), nullptr));
  CheckCrypto(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
  return digest;
}

std::string Sha256Of(const void* data, size_t size) {
  Sha256 digest;
  digest.Update(data, size);
  return digest.Finish();
}

}  // namespace intrawarp::io
