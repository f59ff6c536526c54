// SPDX-License-Identifier: Apache-2.0
// One bar on a terminal for long work, which goes forward only and tells the time to go; nothing where stderr is not a
// terminal. It is redrawn twice a second, so that a step that tells nothing does not look like a program that hangs.
// Thread safety: Update from one thread.
#ifndef INTRAWARP_CLIENT_CLI_PROGRESS_BAR_H_
#define INTRAWARP_CLIENT_CLI_PROGRESS_BAR_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::cli {

// How far a registration is, 0 to 1, by its Progress: stages (the steps of auto) and levels count by their usual cost,
// a level's iterations with ever less, and the end after the last iteration with a tenth. A stage may try its coarsest
// level anew, so that the number falls; the bar does not.
double RegistrationFraction(const v1::RegistrationOptions& options, const v1::Progress& progress);

// "ffd, level 2 of 3, iteration 14"; "before the first stage" while the start or missing tissue is searched.
std::string RegistrationStep(const v1::RegistrationOptions& options, const v1::Progress& progress);

// "[####------]  40 %  0:12, some 0:18 to go  ffd, level 2 of 3": no time to go before 3 s and 5 %.
std::string BarText(double fraction, std::chrono::duration<double> elapsed, const std::string& step);

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // A fraction below an earlier one leaves the bar where it is.
  void Update(double fraction, std::string step);

 private:
  void Redraw();
  void Run();

  const bool terminal_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool ends_ = false;
  double fraction_ = 0;
  std::string step_ = "waiting for the server";
  std::thread thread_;
};

// Whether stderr is a terminal that shows colours: not with NO_COLOR or TERM=dumb.
bool ShowsColor();

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_PROGRESS_BAR_H_
