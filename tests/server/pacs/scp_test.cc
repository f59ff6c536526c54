// SPDX-License-Identifier: Apache-2.0
// The storage port without a server around it: connections of several addresses, and a system without threads.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <system_error>
#include <vector>

#include "server/dimse/association.h"
#include "server/pacs/instance_spool.h"
#include "server/pacs/running_moves.h"
#include "server/pacs/storage_scp.h"
#include "tests/io/io_test.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

constexpr char kVerificationClass[] = "1.2.840.10008.1.1";
constexpr char kExplicitLittle[] = "1.2.840.10008.1.2.1";

class ScpTest : public io::FileTest {
 protected:
  void Start(StorageScp::Options options) {
    SpoolOptions spool;
    spool.folder = folder_.string();
    spool_ = *InstanceSpool::Open(spool);
    options.listen = "0.0.0.0:0";
    options.ae_title = "INTRAWARP";
    auto started = StorageScp::Start(std::move(options), *peers_, *spool_, moves_, metrics_, audit_);
    ASSERT_TRUE(started.ok()) << started.status();
    scp_ = *std::move(started);
    port_ = std::atoi(scp_->address().substr(scp_->address().rfind(':') + 1).c_str());
  }

  // From this address of the loopback interface.
  std::shared_ptr<dimse::Connection> ConnectFrom(const char* address) const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    inet_pton(AF_INET, address, &name.sin_addr);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    inet_pton(AF_INET, "127.0.0.1", &name.sin_addr);
    name.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return std::make_shared<dimse::Connection>(fd, "127.0.0.1");
  }
  absl::Status Associate(const char* address, const char* ae_title) const {
    auto association = dimse::Association::Request(
        ConnectFrom(address), {}, {"INTRAWARP", ae_title, {{1, kVerificationClass, {kExplicitLittle}}}, {}, 16384});
    if (association.ok()) (*association)->Release();
    return association.status();
  }

  const absl::StatusOr<DicomPeers> peers_ = DicomPeers::Parse("NEAR 127.0.0.1 -\nFAR 127.0.0.2 -\n", false);
  Registry registry_;
  const PacsMetrics metrics_{registry_};
  RunningMoves moves_{1};
  const Seams seams_ = SystemSeams();
  AuditTrail audit_{seams_};
  std::unique_ptr<InstanceSpool> spool_;
  std::unique_ptr<StorageScp> scp_;
  int port_ = 0;
};

TEST_F(ScpTest, SilentConnectionsOfOneAddressKeepNoOtherOut) {
  StorageScp::Options options;
  options.max_associations = 3;
  Start(std::move(options));
  std::vector<std::shared_ptr<dimse::Connection>> silent;
  for (int k = 0; k < 100; ++k) silent.push_back(ConnectFrom("127.0.0.1"));
  for (int k = 0; k < 5; ++k) {
    EXPECT_TRUE(Associate("127.0.0.2", "FAR").ok()) << k;
    while (scp_->associations() > 0) std::this_thread::yield();  // its end comes after the peer's
  }
  // Nor do those of two.
  for (int k = 0; k < 100; ++k) silent.push_back(ConnectFrom("127.0.0.2"));
  silent.clear();
  EXPECT_TRUE(Eventually([&] { return Associate("127.0.0.1", "NEAR").ok(); }));
}

TEST_F(ScpTest, AThreadThatIsNotToBeHadCostsOneConnection) {
  StorageScp::Options options;
  int refusals = 3;  // on the listening thread alone
  options.start_thread = [&refusals](std::function<void()> run) {
    if (refusals-- > 0) throw std::system_error(EAGAIN, std::generic_category());
    return std::thread(std::move(run));
  };
  Start(std::move(options));
  for (int k = 0; k < 3; ++k) EXPECT_FALSE(Associate("127.0.0.1", "NEAR").ok());
  EXPECT_TRUE(Associate("127.0.0.1", "NEAR").ok());
  scp_.reset();
}

}  // namespace
}  // namespace intrawarp::server
