// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/process_stats.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <thread>
#include <vector>

namespace intrawarp::server {
namespace {

TEST(ProcessStats, CountsOpenFilesAndKnowsTheirLimit) {
  const ProcessStats before = ReadProcessStats();
  EXPECT_GE(before.open_fds, 3);
  std::vector<int> opened;
  for (int i = 0; i < 5; ++i) opened.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(ReadProcessStats().open_fds, before.open_fds + 5);
  for (const int fd : opened) close(fd);
  EXPECT_EQ(ReadProcessStats().open_fds, before.open_fds);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(before.max_fds, static_cast<int64_t>(limit.rlim_cur));
}

TEST(ProcessStats, CountsThreads) {
  const int64_t before = ReadProcessStats().threads;
  EXPECT_GE(before, 1);
  std::promise<void> begun, ended;
  std::thread thread([&] {
    begun.set_value();
    ended.get_future().wait();
  });
  begun.get_future().wait();
  EXPECT_EQ(ReadProcessStats().threads, before + 1);
  ended.set_value();
  thread.join();
}

TEST(ProcessStats, MemoryIsVirtualUntilItIsTouched) {
  constexpr size_t kBytes = size_t{64} << 20;
  const ProcessStats before = ReadProcessStats();
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const ProcessStats mapped = ReadProcessStats();
  EXPECT_GE(mapped.virtual_bytes - before.virtual_bytes, static_cast<int64_t>(kBytes));
  std::memset(memory, 1, kBytes);
  const ProcessStats touched = ReadProcessStats();
  // The kernel sums pages of each processor now and then.
  EXPECT_GE(touched.resident_bytes - mapped.resident_bytes, static_cast<int64_t>(kBytes / 2));
  EXPECT_LE(touched.resident_bytes, touched.virtual_bytes);
  munmap(memory, kBytes);
}

TEST(ProcessStats, TheTimeOfTheProcessorsIsOfTheWholeProcess) {
  const double before = ReadProcessStats().cpu_seconds;
  rusage usage{};
  // In a thread that ends: its time stays the process'.
  std::thread([&] {
    volatile uint64_t sum = 0;
    do {
      for (int i = 0; i < 1000000; ++i) sum = sum + static_cast<uint64_t>(i);
      getrusage(RUSAGE_THREAD, &usage);
    } while (usage.ru_utime.tv_sec == 0 && usage.ru_utime.tv_usec < 200000);
  }).join();
  getrusage(RUSAGE_SELF, &usage);
  const double now = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                     1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  const double told = ReadProcessStats().cpu_seconds;
  EXPECT_GE(told - before, 0.1);
  // Both are of the kernel's; ticks are a hundredth of a second.
  EXPECT_GE(told, now - 0.05);
}

// proc(5): the name may hold anything, spaces and parentheses too.
TEST(ProcessStats, TheNameOfTheProcessDoesNotShiftTheFigures) {
  char name[16] = {};
  ASSERT_EQ(prctl(PR_GET_NAME, name), 0);
  const ProcessStats before = ReadProcessStats();
  ASSERT_EQ(prctl(PR_SET_NAME, "a) 9 (b 7 ) "), 0);
  const ProcessStats after = ReadProcessStats();
  prctl(PR_SET_NAME, name);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.virtual_bytes, before.virtual_bytes);
  EXPECT_GE(after.cpu_seconds, before.cpu_seconds);
}

}  // namespace
}  // namespace intrawarp::server
