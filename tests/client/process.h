// SPDX-License-Identifier: Apache-2.0
// Programs run by a test: their output, their exit status, and signals to them.
#ifndef INTRAWARP_TESTS_CLIENT_PROCESS_H_
#define INTRAWARP_TESTS_CLIENT_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace intrawarp::client {

struct ProcessResult {
  // 128 + N when signal N ended it.
  int exit_status = -1;
  std::string out;
  std::string err;
};

// What a command line puts on stderr when all is well: the lines with verdict, cost and start; without these, `text`.
std::string WithoutNotes(const std::string& text);

// A running program, in this process's environment but for the command line's own variables (INTRAWARP_SERVER, ...) and
// its configuration file. Its stdin is empty, its output goes to files in a folder of its own, which go with it.
// Ends with SIGKILL what nobody waited for. Thread-compatible.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  ProcessResult Wait();
  // What it has written to stdout so far.
  std::string Output() const;
  // Waits until stdout has a whole line that begins with `prefix`; the line, or nothing after two minutes or at the end
  // of the process.
  std::string WaitForLine(const std::string& prefix);

 private:
  std::string folder_;
  pid_t pid_ = -1;
};

ProcessResult RunProcess(const std::vector<std::string>& arguments);

// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string FileContents(const std::string& path);

// The rest of the word that begins with `name`: "127.0.0.1:80" for "grpc=" in "ready grpc=127.0.0.1:80 device=cpu";
// empty without one.
std::string Word(const std::string& line, const std::string& name);

}  // namespace intrawarp::client

#endif  // INTRAWARP_TESTS_CLIENT_PROCESS_H_
