// SPDX-License-Identifier: Apache-2.0
#include "tests/support/free_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

namespace intrawarp {
namespace {

TEST(FreePortTest, EachCallGivesAnotherPortOfTheRange) {
  std::set<int> ports;
  for (int i = 0; i < 50; ++i) {
    const int port = FreePort();
    EXPECT_GE(port, kFirstFreePort);
    EXPECT_LE(port, kLastFreePort);
    EXPECT_TRUE(ports.insert(port).second) << port;
  }
}

// A server that a test starts can listen there, also a second time.
TEST(FreePortTest, NobodyListensThere) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(FreePort());
  for (int i = 0; i < 2; ++i) {
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(descriptor, 1), 0);
    close(descriptor);
  }
}

// A port where somebody listens is not given.
TEST(FreePortTest, APortInUseIsLeftOut) {
  const int next = FreePort() + 1;
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(next);
  // Where a stranger has it, it is in use, too.
  (void)bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  for (int i = 0; i < 10; ++i) EXPECT_NE(FreePort(), next);
  close(descriptor);
}

// Two programs that begin their search at the same port get different ones.
TEST(FreePortTest, AnotherProcessGetsAnotherPort) {
  std::set<int> mine;
  for (int i = 0; i < 20; ++i) mine.insert(FreePort());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (int i = 0; i < 20; ++i) {
      const int port = FreePort();
      if (write(ends[1], &port, sizeof(port)) != sizeof(port)) _exit(1);
    }
    _exit(0);
  }
  for (int i = 0; i < 20; ++i) {
    int port = 0;
    ASSERT_EQ(read(ends[0], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
    EXPECT_FALSE(mine.contains(port)) << port;
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace intrawarp
