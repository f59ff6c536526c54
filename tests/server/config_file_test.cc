// SPDX-License-Identifier: Apache-2.0
#include "io/file/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/flags.h"
#include "server/ledger/ledger.h"
#include "server/options.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A file that goes with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    char path[] = "/tmp/intrawarp_config_XXXXXX";
    close(mkstemp(path));
    path_ = path;
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::StatusOr<CommandLine> With(const std::string& text, std::vector<std::string> arguments = {}) {
  const TemporaryFile file(text);
  arguments.insert(arguments.begin(), "--config=" + file.path());
  return ParseCommandLine(arguments);
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The flags that stand at the beginning of the help's lines.
std::set<std::string> FlagsOfHelp() {
  std::set<std::string> names;
  for (const absl::string_view line : absl::StrSplit(CommandLineHelp(), '\n')) {
    if (absl::StartsWith(line, "  --")) names.insert(std::string(line.substr(4, line.find_first_of("= ", 4) - 4)));
  }
  return names;
}

TEST(ConfigFile, EntriesInTheirOrder) {
  const auto entries =
      io::ParseConfig("# comment\n\n  listen=127.0.0.1:1\r\nstate_dir =\t/srv/a folder # with this name \n");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].line, 3);
  EXPECT_EQ((*entries)[0].key, "listen");
  EXPECT_EQ((*entries)[0].value, "127.0.0.1:1");
  EXPECT_EQ((*entries)[1].key, "state_dir");
  EXPECT_EQ((*entries)[1].value, "/srv/a folder # with this name");
  EXPECT_TRUE(io::ParseConfig("")->empty());
}

TEST(ConfigFile, NamesTheLineAtFaultAndNoValue) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"secret", "line 1: must be KEY = VALUE"},     {"a = secret\n= secret", "line 2: a key has"},
      {"--listen = secret", "line 1: a key has"},    {"Listen = secret", "line 1: a key has"},
      {"listen =", "line 1: listen: has no value"},  {"a = secret\n\na = other", "line 3: a: stands on line 1 already"},
      {"a = \x01secret", "line 1: holds bytes"},     {std::string("a = \0secret", 11), "line 1: holds bytes"},
      {"a = \xc3\xa4secret", "line 1: holds bytes"},
  };
  for (const auto& [text, message] : bad) {
    const absl::Status status = io::ParseConfig(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
  }
}

TEST(ConfigFile, AFileThatIsNone) {
  EXPECT_THAT(std::string(io::ReadConfigFile("/nonexistent/file").status().message()),
              HasSubstr("/nonexistent/file: "));
  EXPECT_FALSE(io::ReadConfigFile("/tmp").ok());
  const TemporaryFile large(std::string(70 << 10, '#'));
  EXPECT_EQ(io::ReadConfigFile(large.path()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ConfigFile, SetsFlagsAndTheCommandLineWins) {
  const auto line = With("listen = 0.0.0.0:1\nmax_uploads = 3\nreflection = true\n", {"--max_uploads=5"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.listen, "0.0.0.0:1");
  EXPECT_EQ(line->options.limits.max_uploads, 5);
  EXPECT_TRUE(line->options.reflection);
  EXPECT_FALSE(With("reflection = false\n")->options.reflection);
}

TEST(ConfigFile, NamesFileLineAndKeyAtFault) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"bogus = 1", "line 1: bogus: there is no such flag"},
      {"max_upload = 1", "line 1: max_upload: there is no such flag; did you mean --max_uploads?"},
      {"\nmax_uploads = 0", "line 2: max_uploads: must be a positive number"},
      {"reflection = yes", "line 1: reflection: must be true or false"},
      {"config = /etc/other", "line 1: config: can only be given on the command line"},
      {"help = true", "line 1: help: can only be given on the command line"},
  };
  for (const auto& [text, message] : bad) {
    const absl::Status status = With(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("/tmp/intrawarp_config_"));
  }
}

// A value that a file or a command line cannot have, and what the message says of it.
TEST(CommandLine, SaysWhatIsWrong) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{"--bogus"}, "--bogus: unknown option"},
      {{"--listn=a:1"}, "--listn: unknown option; did you mean --listen?"},
      {{"--listen"}, "--listen: needs a value: --listen=HOST:PORT"},
      {{"--listen="}, "--listen: needs a value"},
      {{"--reflection=true"}, "--reflection: takes no value"},
      {{"serve"}, "serve: unexpected argument"},
      {{"--max_uploads=0"}, "--max_uploads: must be a positive number"},
      {{"--resident_bytes=9999999TiB"}, "--resident_bytes: "},
      {{"--dicom_timeout=0s"}, "--dicom_timeout: must be at least 1ms"},
  };
  for (const auto& [arguments, message] : bad) {
    const absl::Status status = ParseCommandLine(arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(CommandLine, TheLastOfAFlagCounts) {
  const auto line = ParseCommandLine({"--max_uploads=3", "--device=cpu", "--max_uploads=5"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.limits.max_uploads, 5);
}

// What the list says holds without a flag is what holds: a server started with all the defaults is one without flags.
TEST(Flags, TheDefaultsThatTheyShowAreTrue) {
  for (const FlagSection& section : FlagSections()) {
    for (const Flag& flag : section.flags) {
      if (flag.is_command) continue;
      CommandLine line;
      EXPECT_FALSE(flag.member.is_changed(line.options)) << flag.name;
      if (flag.value == nullptr || flag.example != nullptr || flag.fallback == std::string("none")) continue;
      const absl::Status status = flag.member.set(flag.fallback, line);
      EXPECT_TRUE(status.ok()) << flag.name << ": " << status;
      EXPECT_FALSE(flag.member.is_changed(line.options)) << flag.name << "=" << flag.fallback;
    }
  }
}

TEST(Flags, EveryExampleIsTakenAndChangesItsOption) {
  for (const FlagSection& section : FlagSections()) {
    for (const Flag& flag : section.flags) {
      if (flag.is_command || (flag.value != nullptr && flag.example == nullptr)) continue;
      CommandLine line;
      const absl::Status status = flag.member.set(flag.example == nullptr ? "" : flag.example, line);
      EXPECT_TRUE(status.ok()) << flag.name << ": " << status;
      EXPECT_TRUE(flag.member.is_changed(line.options)) << flag.name;
    }
  }
}

TEST(Flags, AnIdentityHasAShareOfEveryResourceAndOfTheJobs) {
  int shares = 0;
  for (const FlagSection& section : FlagSections()) {
    for (const Flag& flag : section.flags) shares += absl::StartsWith(flag.name, "max_owner_");
  }
  EXPECT_EQ(shares, kResources + 1);
}

TEST(Flags, ThePrintedConfigurationChangesNothing) {
  const auto line = With(ConfigurationTemplate());
  ASSERT_TRUE(line.ok()) << line.status();
  for (const FlagSection& section : FlagSections()) {
    for (const Flag& flag : section.flags) {
      EXPECT_TRUE(flag.is_command || !flag.member.is_changed(line->options)) << flag.name;
    }
  }
}

TEST(CheckOptions, FindsWhatCannotStart) {
  ServerOptions options;
  options.device = "cpu";
  EXPECT_TRUE(CheckOptions(options).ok()) << CheckOptions(options);
  options.state_dir = "/nonexistent";
  EXPECT_THAT(std::string(CheckOptions(options).message()), HasSubstr("--state_dir: must be a folder"));
  options.state_dir = "/tmp";
  EXPECT_TRUE(CheckOptions(options).ok()) << CheckOptions(options);
  options.http = options.listen;
  EXPECT_THAT(std::string(CheckOptions(options).message()), HasSubstr("--http: must be another address"));
  options.listen = options.http = "127.0.0.1:0";
  EXPECT_TRUE(CheckOptions(options).ok()) << CheckOptions(options);
  options.device = "cuda:99";
  EXPECT_THAT(std::string(CheckOptions(options).message()), HasSubstr("--device: "));
}

// The file that packages install names every flag that a file can set, so that an operator finds them there.
TEST(Documentation, TheShippedConfigurationNamesEveryFlag) {
  const std::string shipped = Contents(INTRAWARP_SOURCE_DIR "/deploy/intrawarpd.conf");
  ASSERT_TRUE(With(shipped).ok()) << With(shipped).status();
  std::string all_on;
  std::set<std::string> names;
  for (const absl::string_view line : absl::StrSplit(shipped, '\n')) {
    const bool is_default =
        absl::StartsWith(line, "#") && !absl::StartsWith(line, "# ") && absl::StrContains(line, '=');
    const absl::string_view entry = is_default ? line.substr(1) : line;
    if (!is_default && (line.empty() || line[0] == '#')) continue;
    absl::StrAppend(&all_on, entry, "\n");
    names.insert(std::string(entry.substr(0, entry.find(' '))));
  }
  EXPECT_TRUE(With(all_on).ok()) << With(all_on).status();
  std::set<std::string> help = FlagsOfHelp();
  for (const char* name : {"help", "version", "config", "check_config", "print_config"}) help.erase(name);
  EXPECT_EQ(names, help);
}

}  // namespace
}  // namespace intrawarp::server
