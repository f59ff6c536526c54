// SPDX-License-Identifier: Apache-2.0
// Measures what clients see when one of three servers is killed under load, and prints the tables of
// docs/use/several-servers.md: failover_run [SESSIONS [RATE_HZ [SIDE [SECONDS]]]]. Loopback, the CPU device; behind the
// client's own routing and, where nginx is installed, behind nginx. Exit status 1 when something acknowledged was lost
// or a session gave up.
#include <grpc/grpc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "tests/client/failover.h"
#include "tests/client/process.h"

namespace intrawarp::client {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Most(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// True when nothing was lost.
bool Print(const FailoverPlan& plan) {
  const auto outcome = RunFailover(plan);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s\n", outcome.status().ToString().c_str());
    return false;
  }
  std::vector<double> frame_ms, noticed, open, whole_again, gap_struck, gap_others, gap_before;
  std::map<std::string, int> causes;
  int frames = 0, resent = 0, failed = 0, resumed = 0, reopened = 0, ended = 0;
  double worst_mm = 0;
  for (const SessionOutcome& session : outcome->sessions) {
    frames += session.frames;
    resent += session.resent;
    failed += session.failed;
    resumed += session.resumed;
    reopened += session.reopened;
    worst_mm = std::max(worst_mm, session.worst_mm);
    for (const std::string& cause : session.causes) ++causes[cause];
    gap_before.push_back(session.gap_before_ms);
    (session.reopened > 0 ? gap_struck : gap_others).push_back(session.gap_after_ms);
    frame_ms.push_back(session.frame_ms);
    if (session.noticed_ms >= 0) noticed.push_back(session.noticed_ms);
    if (session.open_ms >= 0) open.push_back(session.open_ms);
    if (session.whole_again_ms >= 0) whole_again.push_back(session.whole_again_ms);
    if (session.end.ok()) continue;
    ++ended;
    std::printf("gave up: %s\n", session.end.ToString().c_str());
  }
  std::printf("\n%s: %d sessions at %g Hz, volumes of %d^3\n", plan.nginx.empty() ? "own routing" : "nginx",
              plan.sessions, plan.rate_hz, plan.side);
  std::printf("sessions struck, resumed, gave up      %d, %d, %d\n", reopened, resumed, ended);
  std::printf("a frame before the kill, median ms     %.0f\n", Median(frame_ms));
  std::printf(
      "from the kill, median and most, ms: noticed %.0f, %.0f; session open %.0f, %.0f; frame answered %.0f, %.0f\n",
      Median(noticed), Most(noticed), Median(open), Most(open), Median(whole_again), Most(whole_again));
  std::printf("longest time without a frame, ms: before the kill %.0f; after it, struck %.0f, others %.0f\n",
              Most(gap_before), Most(gap_struck), Most(gap_others));
  std::printf("frames answered, sent again, failed    %d, %d, %d; worst map %.2f mm\n", frames, resent, failed,
              worst_mm);
  std::printf("uploads acknowledged, lost, given up   %d, %d, %d\n", outcome->acknowledged, outcome->lost,
              outcome->given_up);
  std::printf("new start to serving, ms               %.0f\n", outcome->restart_ms);
  for (const auto& [cause, count] : causes) std::printf("  %3d x session: %s\n", count, cause.c_str());
  for (const auto& [code, count] : outcome->upload_errors) std::printf("  %3d x upload: %s\n", count, code.c_str());
  std::fflush(stdout);
  return ended == 0 && outcome->lost == 0;
}

int Main(int argc, char** argv) {
  grpc_init();
  FailoverPlan plan;
  plan.intrawarpd = INTRAWARPD;
  plan.sessions = argc > 1 ? std::atoi(argv[1]) : 12;
  plan.rate_hz = argc > 2 ? std::atof(argv[2]) : 5;
  plan.side = argc > 3 ? std::atoi(argv[3]) : 32;
  const int seconds = argc > 4 ? std::atoi(argv[4]) : 10;
  if (plan.sessions < 1 || plan.rate_hz <= 0 || plan.side < 8 || seconds < 1) {
    std::fprintf(stderr, "failover_run [SESSIONS [RATE_HZ [SIDE [SECONDS]]]]\n");
    return 2;
  }
  plan.before = plan.without = plan.after = std::chrono::seconds(seconds);
  bool good = Print(plan);
  if (access(INTRAWARP_NGINX, X_OK) == 0) {
    plan.nginx = INTRAWARP_NGINX;
    plan.nginx_conf = FileContents(INTRAWARP_NGINX_CONF);
    good = Print(plan) && good;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace intrawarp::client

int main(int argc, char** argv) { return intrawarp::client::Main(argc, argv); }
