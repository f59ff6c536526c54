// SPDX-License-Identifier: Apache-2.0
// Text files that an operator gives a server; the first byte chooses one: flags, peers of DICOM, tokens, subjects of
// certificates. Where a value of the corpus says kPlanted, no message repeats it.
#include <string>
#include <vector>

#include "io/file/config_file.h"
#include "server/identity/credentials.h"
#include "server/pacs/peers.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using intrawarp::fuzz::Require;
using namespace intrawarp::server;  // NOLINT(google-build-using-namespace)

constexpr char kPlanted[] = "PLANTED";

void RequireRefusal(const absl::Status& status) {
  intrawarp::fuzz::RequireRefusal(status);
  Require(status.message().find(kPlanted) == absl::string_view::npos, "no value of a file");
}

void TryFlags(absl::string_view text) {
  const auto entries = intrawarp::io::ParseConfig(text);
  RequireRefusal(entries.status());
  if (!entries.ok()) return;
  std::string again;
  for (const intrawarp::io::ConfigEntry& entry : *entries) again += entry.key + " = " + entry.value + "\n";
  const auto parsed = intrawarp::io::ParseConfig(again);
  Require(parsed.ok() && parsed->size() == entries->size(), "as many flags again");
  for (size_t i = 0; i < entries->size(); ++i) {
    Require((*parsed)[i].key == (*entries)[i].key && (*parsed)[i].value == (*entries)[i].value, "the same flag");
  }
}

void TryPeers(absl::string_view text, bool has_identities) {
  const auto peers = DicomPeers::Parse(text, has_identities);
  RequireRefusal(peers.status());
  if (!peers.ok()) return;
  if (const DicomPeer* peer = peers->Find("SENDER")) {
    Require(peers->HasHost(peer->host) && peer->max_associations > 0 && peer->max_instances > 0 && peer->max_bytes > 0,
            "a peer with limits");
    Require(peer->owner.empty() != has_identities, "an owner where there are identities");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::vector<char> copy(data + 1, data + size);
  const absl::string_view text(copy.data(), copy.size());
  switch (data[0] % 5) {
    case 0:
      TryFlags(text);
      break;
    case 1:
    case 2:
      TryPeers(text, data[0] % 5 == 1);
      break;
    case 3: {
      const auto tokens = TokenTable::Parse(text);
      RequireRefusal(tokens.status());
      if (tokens.ok()) Require(!tokens->Find("").has_value() && !tokens->Find(text).has_value(), "no stranger");
      break;
    }
    default: {
      const auto subjects = CertificateTable::Parse(text);
      RequireRefusal(subjects.status());
      if (subjects.ok()) Require(!subjects->Find({}).has_value(), "no stranger");
    }
  }
  return 0;
}
