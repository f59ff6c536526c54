// SPDX-License-Identifier: Apache-2.0
// The server, the images, the clock and the report, which the scenarios share.
#ifndef INTRAWARP_TESTS_BENCH_INTERFERENCE_SITE_H_
#define INTRAWARP_TESTS_BENCH_INTERFERENCE_SITE_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "intrawarp/v1/registration.pb.h"
#include "tests/bench/breath_sequence.h"
#include "tests/bench/interference/options.h"
#include "tests/bench/interference/report.h"
#include "tests/bench/interference/server_process.h"

namespace intrawarp::bench {

// Seconds since the program began. Every time in this bench is one of these.
double Now();
void SleepUntil(double time);

// "affine", "log-demons", "affine,ffd": with the defaults of the command line.
absl::StatusOr<v1::RegistrationOptions> OptionsOfMethod(const std::string& method);

// The name of an error for a table: its code, and the ErrorReason where the server sent one.
std::string ErrorName(const absl::Status& status);

class Site {
 public:
  static absl::StatusOr<std::unique_ptr<Site>> Open(const BenchOptions& options);

  const BenchOptions& options() const { return options_; }
  ServerProcess& server() { return *server_; }
  Report& report() { return report_; }
  // The images of a size, made when they are first asked for; resident as volumes/rest-SIZE.
  absl::StatusOr<const BreathSequence*> Images(int size);
  static std::string RestName(int size);
  // A client with connections of its own.
  absl::StatusOr<std::unique_ptr<client::Client>> Connect() const;
  // The matrix of a generator, resident as sparseMatrices/NAME.
  absl::Status PutMatrix(const std::string& name);

 private:
  Site(const BenchOptions& options, Report report, std::unique_ptr<ServerProcess> server)
      : options_(options), report_(std::move(report)), server_(std::move(server)) {}

  const BenchOptions options_;
  Report report_;
  std::unique_ptr<ServerProcess> server_;
  std::map<int, BreathSequence> images_;
};

}  // namespace intrawarp::bench

#endif  // INTRAWARP_TESTS_BENCH_INTERFERENCE_SITE_H_
