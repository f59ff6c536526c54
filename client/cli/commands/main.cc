// SPDX-License-Identifier: Apache-2.0
// intrawarp: the command line of the client. Exit status: 0; 1 with a line on stderr that names the gRPC code and the
// cause; 2 for a wrong command line; 3 for a result that --require_ok does not take.
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
#include "client/cli/command_context.h"
#include "client/cli/commands/commands.h"
#include "client/cli/completion.h"
#include "client/cli/global_flags.h"
#include "client/cli/placement.h"
#include "client/cli/version.h"
#include "client/cpp/routed_client.h"
#include "engine/base/flags.h"
#include "engine/base/memory_end.h"

namespace intrawarp::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongCommandLine = 2;
constexpr int kNotOk = 3;
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

std::string GeneralHelp(const std::vector<Command>& commands) {
  std::string help =
      "intrawarp [--server=HOST:PORT] [--tls_ca=PATH] COMMAND [...]\n"
      "intrawarp help [COMMAND] | completion bash|zsh | --version\n\n"
      "Commands (intrawarp COMMAND --help says more):\n";
  for (const Command& command : commands) absl::StrAppendFormat(&help, "  %-18s %s\n", command.name, command.summary);
  absl::StrAppend(
      &help, "\nFor every command that talks to a server, before or after COMMAND:\n", FlagHelp(GlobalSyntax()),
      "\nEach of these can also be given in the environment (INTRAWARP_SERVER, INTRAWARP_TLS_CA, ...) or, as a line\n"
      "NAME = VALUE, in the file that INTRAWARP_CONFIG names (~/.config/intrawarp/config without it). The command "
      "line\n"
      "counts before the environment, and the environment before the file.\n"
      "\nSeveral servers: --server=HOST:PORT,HOST:PORT,... or dns:///NAME:PORT. A volume and what is done with it go "
      "to\n"
      "one of them, by the digest of its voxels, and to the next one when that fails; list, info and health show all.\n"
      "--routing_key=KEY takes the digest's place, and tells a proxy which calls go to one server.\n",
      "\nX is volumes/ID, or a file (.nii[.gz], .nrrd, .nhdr, .mha, .mhd), DICOM folder, DICOMDIR or DICOM file,\n"
      "which is uploaded, used and deleted. PATH#SERIES chooses one of several DICOM volumes, by its index or series.\n"
      "Exit status: 0; 1 with a line on stderr that names the gRPC code and the cause; 2 for a wrong command line;\n"
      "3 for a result that --require_ok does not take.\n");
  return help;
}

std::string CommandHelp(const Command& command) {
  const std::vector<std::string>& positionals = command.syntax.positionals;
  return absl::StrCat(
      "intrawarp ", command.name, positionals.empty() ? "" : " ", absl::StrJoin(positionals, " "),
      command.syntax.flags.empty() ? "" : " [options]", "\n\n", command.summary, "\n",
      command.syntax.flags.empty() ? "" : "\n", FlagHelp(command.syntax), command.notes.empty() ? "" : "\n",
      command.notes,
      command.needs_server ? "\n--server=HOST:PORT and the other options of intrawarp --help go with it.\n" : "");
}

int Report(const absl::Status& status, int exit_status) {
  const std::string text = ErrorText(status);
  // A wrong command line has no code of the server's.
  const size_t begin = exit_status == kWrongCommandLine ? text.find(": ") + 2 : 0;
  std::fprintf(stderr, "intrawarp: %s\n", text.c_str() + begin);
  return exit_status;
}

int WrongCommandLine(const std::string& message) {
  return Report(absl::InvalidArgumentError(message), kWrongCommandLine);
}

int StatusOf(const absl::Status& status) {
  return IsUsageError(status) ? kWrongCommandLine : IsNotOkError(status) ? kNotOk : kFailed;
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

client::ClientOptions OptionsOf(const GlobalFlags& global) {
  client::ClientOptions options;
  options.security = {global.String("tls_ca"), global.String("tls_cert"), global.String("tls_key"),
                      global.String("token_file")};
  return options;
}

absl::Status RunWithServer(const Command& command, const ParsedFlags& flags, const GlobalFlags& global) {
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
  CommandContext context(servers->get(), &interrupt, connection);
  const absl::Status status = RunOnServers(command, flags, context);
  if (!status.ok() && interrupt.cancelled()) return absl::CancelledError("interrupted");
  return status;
}

absl::Status RunCommand(const Command& command, const ParsedFlags& before, const ParsedFlags& flags) {
  if (command.needs_server) {
    const absl::StatusOr<GlobalFlags> global = GlobalFlags::Resolve(before, flags, getenv);
    if (!global.ok()) return UsageError(global.status());
    return RunWithServer(command, flags, *global);
  }
  client::Cancellation never;
  CommandContext context(nullptr, &never);
  return command.run(flags, context);
}

bool IsHelp(const std::string& argument) { return argument == "--help" || argument == "-h"; }
bool AsksForHelp(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), IsHelp);
}

int Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return FlushOutput(absl::OkStatus()).ok() ? EXIT_SUCCESS : kFailed;
}

int UnknownCommand(const std::vector<Command>& commands, std::vector<std::string> words) {
  words.resize(std::min<size_t>(2, words.size()));
  const std::string name = absl::StrJoin(words, " ");
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  const std::string nearest = Suggestion(name, names);
  return WrongCommandLine(
      absl::StrCat(name, ": unknown command", nearest.empty() ? "; intrawarp --help lists them" : nearest));
}

// `words` begin with "completion".
int PrintCompletion(const std::vector<Command>& commands, const std::vector<std::string>& words) {
  if (words.size() != 2) return WrongCommandLine("completion: needs one argument, bash or zsh");
  const absl::StatusOr<std::string> script = CompletionScript(words[1], commands);
  return script.ok() ? Print(*script) : Report(script.status(), kWrongCommandLine);
}

int Main(const std::vector<std::string>& arguments) {
  const std::vector<Command> commands = AllCommands();
  const auto is_flag = [](const std::string& argument) { return argument.rfind('-', 0) == 0; };
  const auto command_begin = std::find_if_not(arguments.begin(), arguments.end(), is_flag);
  const std::vector<std::string> global(arguments.begin(), command_begin);
  std::vector<std::string> words(command_begin, arguments.end());
  if (AsksForHelp(global)) return Print(GeneralHelp(commands));
  if (std::count(global.begin(), global.end(), "--version") > 0) {
    return Print(absl::StrCat("intrawarp ", kVersion, " ", kRevision, "\n"));
  }
  const absl::StatusOr<ParsedFlags> before = ParseFlags(GlobalSyntax(), global);
  if (!before.ok()) return Report(before.status(), kWrongCommandLine);
  if (words.empty()) return WrongCommandLine("no command; intrawarp --help lists them");
  if (words.front() == "completion" && !AsksForHelp(words)) return PrintCompletion(commands, words);
  const bool is_help = words.front() == "help";
  if (is_help) words.erase(words.begin());

  size_t used = 0;
  const Command* command = FindCommand(commands, words, &used);
  if (command == nullptr && (words.empty() || AsksForHelp(words))) return Print(GeneralHelp(commands));
  if (command == nullptr) return UnknownCommand(commands, words);
  const std::vector<std::string> rest(words.begin() + static_cast<std::ptrdiff_t>(used), words.end());
  if (is_help || AsksForHelp(rest)) return Print(CommandHelp(*command));
  const absl::StatusOr<ParsedFlags> flags =
      ParseFlags(command->needs_server ? WithGlobalFlags(command->syntax) : command->syntax, rest);
  if (!flags.ok()) return Report(flags.status(), kWrongCommandLine);

  const absl::Status status = FlushOutput(RunCommand(*command, *before, *flags));
  return status.ok() ? EXIT_SUCCESS : Report(status, StatusOf(status));
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
