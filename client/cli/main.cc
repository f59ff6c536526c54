// SPDX-License-Identifier: Apache-2.0
// intrawarp: the command line of the client. Exit status: 0; 1 with one line on stderr that names the gRPC code and the
// cause; 2 for a wrong command line.
#include <grpc/grpc.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/flags.h"
#include "client/cli/matrix_files.h"
#include "client/cli/placement.h"
#include "client/cli/session.h"
#include "client/cpp/routed_client.h"
#include "engine/base/memory_end.h"
#include "proto/trace_context.h"

namespace intrawarp::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongCommandLine = 2;
constexpr int kInterruptedTwice = 130;

std::vector<Command> AllCommands() {
  std::vector<Command> all;
  for (auto family : {VolumeCommands, RegisterCommands, NavigateCommands, TransformCommands, MatrixCommands,
                      OperationCommands, ServerCommands, StateCommands, AuditCommands, TokenCommands, DicomCommands,
                      PacsCommands, PhantomCommands, SelfTestCommands, BenchCommands}) {
    for (Command& command : family()) all.push_back(std::move(command));
  }
  return all;
}

// The global flags of a connection.
CommandSyntax SecuritySyntax() {
  return {{{.name = "tls_ca", .placeholder = "PATH", .help = "the authorities (PEM) of the server's certificate"},
           {.name = "tls_cert", .placeholder = "PATH", .help = "the client's certificate chain (PEM)"},
           {.name = "tls_key", .placeholder = "PATH", .help = "its private key (PEM)"},
           {.name = "token_file", .placeholder = "PATH", .help = "a file that holds a token (intrawarp token new)"}}};
}

CommandSyntax TraceSyntax() {
  return {{{.name = "traceparent",
            .placeholder = "TRACE",
            .help = "the trace of the calls, as in W3C Trace Context; in the server's log"}}};
}

// Before the command.
CommandSyntax GlobalSyntax() {
  CommandSyntax syntax = SecuritySyntax();
  syntax.flags.push_back({.name = "server", .placeholder = "HOST:PORT", .help = ""});
  syntax.flags.push_back({.name = "routing_key", .placeholder = "KEY", .help = ""});
  for (const FlagSpec& flag : TraceSyntax().flags) syntax.flags.push_back(flag);
  return syntax;
}

std::string GeneralHelp(const std::vector<Command>& commands) {
  std::string help =
      "intrawarp --server=HOST:PORT [--tls_ca=PATH] COMMAND [...]\n\n"
      "Commands (intrawarp COMMAND --help says more):\n";
  for (const Command& command : commands) absl::StrAppendFormat(&help, "  %-18s %s\n", command.name, command.summary);
  absl::StrAppend(
      &help, "\nFor a server with TLS, before COMMAND:\n", FlagHelp(SecuritySyntax()),
      "\nFor any server, before COMMAND:\n", FlagHelp(TraceSyntax()),
      "\nSeveral servers: --server=HOST:PORT,HOST:PORT,... or dns:///NAME:PORT. A volume and what is done with it go "
      "to\n"
      "one of them, by the digest of its voxels, and to the next one when that fails; list, info and health show all.\n"
      "--routing_key=KEY, before COMMAND, takes the digest's place, and tells a proxy which calls go to one server.\n",
      "\nX is volumes/ID, or a file (.nii[.gz], .nrrd, .nhdr, .mha, .mhd), DICOM folder, DICOMDIR or DICOM file,\n"
      "which is uploaded, used and deleted. PATH#SERIES chooses one of several DICOM volumes, by its index or series.\n"
      "Exit status: 0; 1 with one line on stderr that names the gRPC code and the cause; 2 for a wrong\n"
      "command line.\n");
  return help;
}

std::string CommandHelp(const Command& command) {
  const std::vector<std::string>& positionals = command.syntax.positionals;
  return absl::StrCat("intrawarp ", command.needs_server ? "--server=HOST:PORT " : "", command.name,
                      positionals.empty() ? "" : " ", absl::StrJoin(positionals, " "),
                      command.syntax.flags.empty() ? "" : " [options]", "\n\n", command.summary, "\n",
                      command.syntax.flags.empty() ? "" : "\n", FlagHelp(command.syntax),
                      command.notes.empty() ? "" : "\n", command.notes);
}

// The error line; what a server or a file name put into the message stays on one line.
int Report(const absl::Status& status, int exit_status) {
  std::string line =
      exit_status == kWrongCommandLine
          ? std::string(status.message())
          : ShownMatrixNames(absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  std::fprintf(stderr, "intrawarp: %s\n", line.c_str());
  return exit_status;
}

int WrongCommandLine(const std::string& message) {
  return Report(absl::InvalidArgumentError(message), kWrongCommandLine);
}

// The command that the words name, and how many words that took.
const Command* FindCommand(const std::vector<Command>& commands, const std::vector<std::string>& words, size_t* used) {
  for (size_t count = std::min<size_t>(2, words.size()); count > 0; --count) {
    const std::string name = absl::StrJoin(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(count), " ");
    for (const Command& command : commands) {
      *used = count;
      if (command.name == name) return &command;
    }
  }
  return nullptr;
}

// Turns the first SIGINT, SIGTERM or SIGHUP into a cancellation, so that the command can clean up, and ends the process
// at the second. Made before any other thread, which then inherit the blocked signals.
class InterruptWatcher {
 public:
  explicit InterruptWatcher(client::Cancellation* cancellation) {
    sigemptyset(&signals_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this, cancellation] { Watch(cancellation); });
  }
  ~InterruptWatcher() {
    stopping_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }

 private:
  void Watch(client::Cancellation* cancellation) {
    int signal = 0;
    while (sigwait(&signals_, &signal) == 0 && !stopping_) {
      if (cancellation->cancelled()) _exit(kInterruptedTwice);
      cancellation->Cancel();
    }
  }

  sigset_t signals_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

absl::Status FlushOutput(absl::Status status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return status.ok() ? absl::DataLossError("stdout: could not be written") : status;
}

client::ClientOptions OptionsOf(const ParsedFlags& global) {
  client::ClientOptions options;
  options.security = {global.String("tls_ca"), global.String("tls_cert"), global.String("tls_key"),
                      global.String("token_file")};
  return options;
}

absl::Status RunWithServer(const Command& command, const ParsedFlags& flags, const ParsedFlags& global) {
  client::Cancellation interrupt;
  InterruptWatcher watcher(&interrupt);
  // Without this the end of the last channel shuts the library down, which may wait ten seconds for one of its pollers;
  // the end of the process does as well.
  grpc_init();
  const Connection connection = {global.String("server"), OptionsOf(global), global.String("routing_key"),
                                 global.String("traceparent")};
  absl::StatusOr<std::unique_ptr<client::RoutedClient>> servers =
      client::RoutedClient::Connect(connection.target, connection.options);
  if (!servers.ok()) return servers.status();
  Session session(servers->get(), &interrupt, connection);
  const absl::Status status = RunOnServers(command, flags, session);
  if (!status.ok() && interrupt.cancelled()) return absl::CancelledError("interrupted");
  return status;
}

absl::Status RunCommand(const Command& command, const ParsedFlags& flags, const ParsedFlags& global) {
  if (command.needs_server) return RunWithServer(command, flags, global);
  client::Cancellation never;
  Session session(nullptr, &never);
  return command.run(flags, session);
}

int Main(const std::vector<std::string>& arguments) {
  const std::vector<Command> commands = AllCommands();
  const auto is_flag = [](const std::string& argument) { return argument.rfind('-', 0) == 0; };
  const auto command_begin = std::find_if_not(arguments.begin(), arguments.end(), is_flag);
  const std::vector<std::string> global(arguments.begin(), command_begin);
  std::vector<std::string> words(command_begin, arguments.end());
  if (std::count(global.begin(), global.end(), "--help") > 0) {
    std::fputs(GeneralHelp(commands).c_str(), stdout);
    return EXIT_SUCCESS;
  }
  const absl::StatusOr<ParsedFlags> global_flags = ParseFlags(GlobalSyntax(), global);
  if (!global_flags.ok()) return Report(global_flags.status(), kWrongCommandLine);
  if (words.empty()) return WrongCommandLine("no command; intrawarp --help lists them");

  size_t used = 0;
  const Command* command = FindCommand(commands, words, &used);
  if (command == nullptr && std::count(words.begin(), words.end(), "--help") > 0) {
    std::fputs(GeneralHelp(commands).c_str(), stdout);
    return EXIT_SUCCESS;
  }
  if (command == nullptr) {
    words.resize(std::min<size_t>(2, words.size()));
    return WrongCommandLine(absl::StrCat(absl::StrJoin(words, " "), ": unknown command; intrawarp --help lists them"));
  }
  const std::vector<std::string> rest(words.begin() + static_cast<std::ptrdiff_t>(used), words.end());
  if (std::count(rest.begin(), rest.end(), "--help") > 0) {
    std::fputs(CommandHelp(*command).c_str(), stdout);
    return EXIT_SUCCESS;
  }
  const absl::StatusOr<ParsedFlags> flags = ParseFlags(command->syntax, rest);
  if (!flags.ok()) return Report(flags.status(), kWrongCommandLine);
  if (command->needs_server && !global_flags->Has("server")) return WrongCommandLine("--server: is missing");

  if (global_flags->Has("traceparent") && !TraceIdIn(global_flags->String("traceparent"))) {
    return WrongCommandLine("--traceparent: must be VERSION-TRACE-PARENT-FLAGS in lower-case hexadecimal digits");
  }

  const absl::Status status = FlushOutput(RunCommand(*command, *flags, *global_flags));
  if (status.ok()) return EXIT_SUCCESS;
  return Report(status, IsUsageError(status) ? kWrongCommandLine : kFailed);
}

}  // namespace
}  // namespace intrawarp::cli

int main(int argc, char** argv) {
  // The transport's own log lines would stand between a script and the one error line.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  signal(SIGPIPE, SIG_IGN);
  return intrawarp::RunWithinMemory(
      "intrawarp", [&] { return intrawarp::cli::Main(std::vector<std::string>(argv + 1, argv + argc)); });
}
