// SPDX-License-Identifier: Apache-2.0
// intrawarp navigate: a folder of frames against a resident volume.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/commands/commands.h"
#include "client/cli/field_file.h"
#include "client/cli/field_flags.h"
#include "client/cli/files.h"
#include "client/cli/placement.h"
#include "client/cli/registration_flags.h"
#include "client/cli/registration_inputs.h"
#include "client/cli/report_json.h"
#include "client/cli/verdict.h"
#include "client/cpp/routed_session.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "io/format/grid_files.h"
#include "io/format/nifti.h"
#include "wire/convert.h"

namespace intrawarp::cli {
namespace {

// A session that was given a name is taken up again so often, after so long, when its stream breaks.
constexpr int kResumptions = 20;
constexpr std::chrono::milliseconds kResumePause{500};

// On several servers: so often in a row a session is recovered without a new answer.
constexpr int kRecoveriesInVain = 5;
// A frame that was the oldest without an answer when so many servers were lost may be what they fail of.
constexpr int kServersLostToAFrame = 2;

// Ends the name of a coarse field's file.
constexpr char kCoarse[] = ".coarse";

// The files of the masks and weights of one frame; empty: it has none of its own.
struct MaskFiles {
  std::string mask;
  std::string weight;
};

struct FrameOutcome {
  absl::Status status = absl::UnavailableError("no answer");
  v1::Report report;
  bool is_known = false;
  // A newer frame took its place, which --latest allows.
  bool is_superseded = false;
};

// On stderr: whoever relies on it has to know.
void TellNoMemory(const absl::Status& why) {
  std::fprintf(stderr, "intrawarp: the session goes on without shared memory (%s: %s)\n",
               absl::StatusCodeToString(why.code()).c_str(), std::string(why.message()).c_str());
}

// The temporaries of a session, on each server that it was on.
class StagedInputs {
 public:
  StagedInputs(CommandContext& context, const ParsedFlags& flags, const RegistrationFlags& registration)
      : context_(context), flags_(flags), registration_(registration) {}

  // RoutedSession::Stage. A server that is staged on again was started anew, or may have lost some.
  absl::Status Stage(const std::string& address, v1::NavigateConfig& config) {
    staged_ = false;
    INTRAWARP_RETURN_IF_ERROR(context_.Use(address));
    by_address_[address].reset();
    by_address_[address] = std::make_unique<Temporaries>(context_);
    here_ = by_address_[address].get();
    Temporaries& temporaries = *here_;
    INTRAWARP_ASSIGN_OR_RETURN(*config.mutable_options(), WithInputs(registration_, temporaries));
    const char* resident = flags_.Has("fixed") ? "fixed" : "moving";
    std::string* name = flags_.Has("fixed") ? config.mutable_fixed() : config.mutable_moving();
    INTRAWARP_ASSIGN_OR_RETURN(*name, temporaries.Volume(flags_.String(resident)));
    staged_ = true;
    return absl::OkStatus();
  }

  // Whether the last Stage went well.
  bool staged() const { return staged_; }

  // Uploads a frame's masks to the server that was staged last, unless they lie there, and names them in the frame.
  absl::Status StageMasks(const MaskFiles& files, client::Frame& frame) {
    if (!files.mask.empty()) {
      INTRAWARP_ASSIGN_OR_RETURN(frame.mask, here_->Volume(files.mask));
    }
    if (!files.weight.empty()) {
      INTRAWARP_ASSIGN_OR_RETURN(frame.weight, here_->Volume(files.weight));
    }
    return absl::OkStatus();
  }
  // For a frame that was answered.
  void DropMasks(const MaskFiles& files) {
    here_->DropVolume(files.mask);
    here_->DropVolume(files.weight);
  }

  // The error of `address`; others may be gone.
  absl::Status DeleteAll(const std::string& address) {
    absl::Status status;
    for (auto& [each, temporaries] : by_address_) {
      const absl::Status deleted = temporaries->DeleteAll();
      if (each == address) status = deleted;
    }
    return status;
  }

 private:
  CommandContext& context_;
  const ParsedFlags& flags_;
  const RegistrationFlags& registration_;
  std::map<std::string, std::unique_ptr<Temporaries>> by_address_;
  Temporaries* here_ = nullptr;  // on the server that was staged last
  bool staged_ = false;
};

// One session over a list of files: a thread reads and sends them, the calling thread takes the answers.
class Navigation {
 public:
  // `masks`: one entry a path.
  Navigation(CommandContext& context, std::vector<std::string> paths, std::vector<MaskFiles> masks,
             std::string field_dir, bool shares_memory)
      : context_(context),
        paths_(std::move(paths)),
        masks_(std::move(masks)),
        field_dir_(std::move(field_dir)),
        shares_memory_(shares_memory),
        outcomes_(paths_.size()) {}

  // How the session went; how each frame went is in outcomes(). `recovers`: on several servers, or through a proxy.
  absl::Status Run(client::RoutedSession& routed, const v1::NavigateConfig& config, StagedInputs& inputs,
                   bool recovers) {
    inputs_ = &inputs;
    encoding_ = config.field().encoding();
    asks_coarse_ = config.coarse_field();
    rate_hz_ = config.rate_hz();
    // Asked for and not to be had is an error, as long as no frame depends on the session.
    if (shares_memory_) INTRAWARP_RETURN_IF_ERROR(routed.stream()->ShareMemory());
    const absl::Status status =
        recovers ? StreamRecovering(routed) : StreamResuming(routed, !config.session_id().empty());
    closed_ = routed.stream()->closed();
    if (shares_memory_) Count(routed);
    return status;
  }

  const std::vector<std::string>& paths() const { return paths_; }
  const std::vector<FrameOutcome>& outcomes() const { return outcomes_; }
  // The session at its end; unset when it did not end well.
  const std::optional<v1::Session>& closed() const { return closed_; }
  // How frames and fields have travelled.
  const client::Transfers& transfers() const { return transfers_; }

 private:
  // Takes a session that has a name up again.
  absl::Status StreamResuming(client::RoutedSession& routed, bool may_resume) {
    absl::Status status = Stream(routed);
    for (int i = 0; may_resume && absl::IsUnavailable(status) && i < kResumptions; ++i) {
      if (context_.call().cancellation->WaitFor(kResumePause)) break;
      status = routed.stream()->Resume();
      if (status.ok()) TellMemory(routed);
      if (status.ok()) status = Stream(routed);
    }
    return status;
  }

  // For a stream that was resumed.
  void TellMemory(client::RoutedSession& routed) const {
    if (shares_memory_ && !routed.stream()->memory_status().ok()) TellNoMemory(routed.stream()->memory_status());
  }

  absl::Status StreamRecovering(client::RoutedSession& routed) {
    absl::Status status = Stream(routed);
    for (int in_vain = 0; routed.is_broken() && in_vain < kRecoveriesInVain; ++in_vain) {
      const std::string cause(status.message());
      const absl::StatusOr<client::RoutedSession::Recovery> recovery = Recover(routed);
      if (!recovery.ok()) return recovery.status();
      Tell(routed.address(), *recovery, cause);
      if (!recovery->resumed) GiveUpFatalFrame(status);
      const size_t known = CountKnown();
      status = Stream(routed);
      if (CountKnown() > known) in_vain = -1;
    }
    return status;
  }

  // A session on another server, which may be on another host, goes on without shared memory.
  absl::StatusOr<client::RoutedSession::Recovery> Recover(client::RoutedSession& routed) {
    const client::Transfers so_far = routed.stream()->transfers();
    absl::StatusOr<client::RoutedSession::Recovery> recovery = routed.Recover();
    if (!shares_memory_ || !recovery.ok()) return recovery;
    if (!recovery->resumed) {
      Add(so_far);
      (void)routed.stream()->ShareMemory();
    }
    TellMemory(routed);
    return recovery;
  }

  void Count(client::RoutedSession& routed) { Add(routed.stream()->transfers()); }
  void Add(const client::Transfers& more) {
    transfers_.frames_shared += more.frames_shared;
    transfers_.frames_in_chunks += more.frames_in_chunks;
    transfers_.fields_shared += more.fields_shared;
    transfers_.fields_in_chunks += more.fields_in_chunks;
  }

  // On stderr, whether it is a terminal or not: whoever relies on the frames has to know.
  static void Tell(const std::string& address, const client::RoutedSession::Recovery& recovery,
                   const std::string& cause) {
    using Start = client::RoutedSession::Recovery::Start;
    const char* how = recovery.resumed                   ? "resumed on"
                      : recovery.start == Start::kWhole  ? "goes on from the last good transform on"
                      : recovery.start == Start::kAffine ? "goes on from the last good affine map on"
                                                         : "begins anew on";
    std::fprintf(stderr, "intrawarp: the session %s %s (%s)\n", how, address.c_str(), cause.c_str());
  }

  // The oldest frame without an answer fails when it has cost too many servers.
  void GiveUpFatalFrame(const absl::Status& cause) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < outcomes_.size(); ++i) {
      if (outcomes_[i].is_known) continue;
      if (++servers_lost_[i] >= kServersLostToAFrame) {
        outcomes_[i].status = cause;
        outcomes_[i].is_known = true;
      }
      return;
    }
  }

  size_t CountKnown() {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<size_t>(std::count_if(outcomes_.begin(), outcomes_.end(),
                                             [](const FrameOutcome& outcome) { return outcome.is_known; }));
  }

  // Everything that has no answer yet over one stream.
  absl::Status Stream(client::RoutedSession& stream) {
    std::thread sender([&] { SendAll(stream); });
    const absl::Status status = ReceiveAll(stream);
    if (!status.ok()) stream.Cancel();
    sender.join();
    return status;
  }

  // False when the wait was interrupted.
  bool WaitForTurn(std::chrono::steady_clock::time_point begin, int64_t sent) {
    if (rate_hz_ == 0) return true;
    const auto due = begin + std::chrono::duration<double>(static_cast<double>(sent) / rate_hz_);
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(due - std::chrono::steady_clock::now());
    return wait.count() <= 0 || !context_.call().cancellation->WaitFor(wait);
  }

  // Frames are numbered from 1 in the order of their names; those that are sent again get new numbers.
  void SendAll(client::RoutedSession& stream) {
    const auto begin = std::chrono::steady_clock::now();
    int64_t sent = 0;
    for (size_t i = 0; i < paths_.size(); ++i) {
      if (IsKnown(i)) continue;
      absl::StatusOr<io::HostVolume> volume = io::ReadVolumeFile(paths_[i]);
      if (!volume.ok()) {
        SetOutcome(i, {volume.status(), {}});
        continue;
      }
      AssumeOrientation(context_.assumed_orientation(), &*volume);
      if (!std::exchange(is_orientation_told_, true)) context_.TellOrientation(paths_[i], *volume);
      client::Frame frame;
      if (!StageMasks(i, frame)) continue;
      if (!WaitForTurn(begin, sent++)) return;
      frame.number = NumberFor(i);
      frame.geometry = volume->geometry;
      frame.pixel_type = volume->pixel_type;
      frame.bytes = absl::string_view(reinterpret_cast<const char*>(volume->pixels.data()), volume->pixels.size());
      frame.rescale_slope = volume->rescale_slope;
      frame.rescale_intercept = volume->rescale_intercept;
      // Why a stream ended is for the receiver to say.
      if (!stream.Send(frame).ok()) return;
    }
    (void)stream.CloseSend();
  }

  // False when the frame cannot be sent: for good, or until the session has a server that answers.
  bool StageMasks(size_t index, client::Frame& frame) {
    // Frames are answered in their order. A mask that cannot be deleted now is left to the end.
    for (; dropped_ < index && IsKnown(dropped_); ++dropped_) inputs_->DropMasks(masks_[dropped_]);
    const absl::Status staged = inputs_->StageMasks(masks_[index], frame);
    if (staged.ok()) return true;
    FrameOutcome outcome;
    outcome.status = Annotate(staged, "the frame's masks");
    SetOutcome(index, std::move(outcome), /*is_known=*/!absl::IsUnavailable(staged));
    return false;
  }

  absl::Status ReceiveAll(client::RoutedSession& stream) {
    ProgressLine progress;
    client::GridData field, coarse_field;
    client::CoarseFieldSink coarse;
    if (asks_coarse_) {
      coarse.field = client::SinkInto(&coarse_field);
      coarse.received = [&](const v1::FrameField& header) { return WriteCoarseField(header, coarse_field); };
    }
    while (true) {
      INTRAWARP_ASSIGN_OR_RETURN(std::optional<client::FrameAnswer> answer, stream.Receive(&field, coarse));
      if (!answer.has_value()) return absl::OkStatus();
      INTRAWARP_ASSIGN_OR_RETURN(const size_t index, IndexOf(answer->result.frame_number()));
      if (answer->has_field && !field_dir_.empty()) {
        INTRAWARP_RETURN_IF_ERROR(WriteFrameField(index, answer->result.report().affine(), field));
      }
      FrameOutcome outcome{client::FromRpcStatus(answer->result.status()), {}};
      outcome.is_superseded = answer->is_superseded();
      outcome.report = std::move(*answer->result.mutable_report());
      SetOutcome(index, std::move(outcome));
      progress.Show(absl::StrFormat("frame %d of %d", index + 1, paths_.size()));
    }
  }

  int64_t NumberFor(size_t index) {
    std::lock_guard<std::mutex> lock(mutex_);
    index_by_number_[++last_number_] = index;
    return last_number_;
  }

  absl::StatusOr<size_t> IndexOf(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = index_by_number_.find(number);
    if (it != index_by_number_.end()) return it->second;
    return absl::InternalError(absl::StrCat("the server answered frame ", number, ", which was not sent"));
  }

  bool IsKnown(size_t index) {
    std::lock_guard<std::mutex> lock(mutex_);
    return outcomes_[index].is_known;
  }

  absl::Status WriteCoarseField(const v1::FrameField& header, const client::GridData& field) {
    INTRAWARP_ASSIGN_OR_RETURN(const size_t index, IndexOf(header.frame_number()));
    const std::string out = absl::StrCat(field_dir_, "/", Stem(paths_[index]), kCoarse, ".nii.gz");
    return WriteFieldFile(out, encoding_, header.field().affine(), field);
  }

  absl::Status WriteFrameField(size_t index, const v1::AffineMap& affine, const client::GridData& field) {
    const std::string out = absl::StrCat(field_dir_, "/", Stem(paths_[index]), ".nii.gz");
    return WriteFieldFile(out, encoding_, affine, field);
  }

  void SetOutcome(size_t index, FrameOutcome outcome, bool is_known = true) {
    outcome.is_known = is_known;
    std::lock_guard<std::mutex> lock(mutex_);
    outcomes_[index] = std::move(outcome);
  }

  CommandContext& context_;
  const std::vector<std::string> paths_;
  const std::vector<MaskFiles> masks_;
  const std::string field_dir_;
  const bool shares_memory_;
  client::Transfers transfers_;
  v1::FieldEncoding encoding_ = v1::FIELD_ENCODING_UNSPECIFIED;
  bool asks_coarse_ = false;
  StagedInputs* inputs_ = nullptr;    // from Run on
  size_t dropped_ = 0;                // the frames whose masks have been deleted
  bool is_orientation_told_ = false;  // of the first frame: the others are like it
  double rate_hz_ = 0;                // 0: as fast as the server takes them
  std::optional<v1::Session> closed_;
  std::mutex mutex_;  // guards what follows
  std::vector<FrameOutcome> outcomes_;
  std::map<size_t, int> servers_lost_;
  std::map<int64_t, size_t> index_by_number_;
  int64_t last_number_ = 0;
};

void TellTransfers(const client::Transfers& transfers) {
  std::fprintf(stderr, "intrawarp: frames: %d through shared memory, %d in chunks; fields: %d, %d\n",
               static_cast<int>(transfers.frames_shared), static_cast<int>(transfers.frames_in_chunks),
               static_cast<int>(transfers.fields_shared), static_cast<int>(transfers.fields_in_chunks));
}

std::string OutcomeText(const FrameOutcome& outcome) {
  if (outcome.is_superseded) return absl::StrCat("superseded\t", outcome.status.message());
  if (!outcome.status.ok()) return absl::StrCat("failed\t", ErrorText(outcome.status));
  return absl::StrFormat("%s\t%.1f ms\t%s\t%s", IsOk(outcome.report) ? "ok" : "review",
                         outcome.report.latency().total_ms(), absl::StrJoin(ReasonTexts(outcome.report), "; "),
                         ExpectedErrorText(outcome.report));
}

// Scripts know the columns; people need their names.
void PrintFrames(const Navigation& navigation) {
  if (isatty(STDOUT_FILENO) == 1) std::puts("FRAME\tVERDICT\tLATENCY\tREASONS\tEXPECTED ERROR");
  for (size_t i = 0; i < navigation.paths().size(); ++i) {
    std::printf("%s\t%s\n", FileName(navigation.paths()[i]).c_str(), OutcomeText(navigation.outcomes()[i]).c_str());
  }
}

// For --require_ok: the first frame that is not ok, and how many are not. What failed is told as a failure.
absl::Status CheckVerdicts(const ParsedFlags& flags, const Navigation& navigation) {
  if (!flags.Has("require_ok")) return absl::OkStatus();
  std::string first;
  int count = 0;
  for (size_t i = 0; i < navigation.paths().size(); ++i) {
    const FrameOutcome& outcome = navigation.outcomes()[i];
    if (!outcome.status.ok() || IsOk(outcome.report)) continue;
    if (count++ == 0) first = FileName(navigation.paths()[i]);
  }
  if (count == 0) return absl::OkStatus();
  return NotOkError(absl::FailedPreconditionError(
      absl::StrCat("the verdict of ", count, " of ", navigation.paths().size(), " frames is not ok, the first ", first,
                   ", and --require_ok takes only ok")));
}

absl::Status WriteReport(const Navigation& navigation, const std::string& method, const std::string& out) {
  if (out.empty()) return absl::OkStatus();
  Json list = Json::array();
  for (size_t i = 0; i < navigation.paths().size(); ++i) {
    const FrameOutcome& outcome = navigation.outcomes()[i];
    list.push_back(FrameReportToJson(method, FileName(navigation.paths()[i]), outcome.report, outcome.status));
  }
  return Annotate(io::WriteSmallFile(out, JsonText(list)), out);
}

absl::Status WriteSessionReport(const Navigation& navigation, const std::string& out) {
  if (out.empty() || !navigation.closed()) return absl::OkStatus();
  return Annotate(io::WriteSmallFile(out, JsonText(SessionToJson(*navigation.closed()))), out);
}

// The first frame that failed, and how many did.
absl::Status FailedFrames(const Navigation& navigation) {
  absl::Status first;
  int failed = 0;
  for (size_t i = 0; i < navigation.paths().size(); ++i) {
    const absl::Status& status = navigation.outcomes()[i].status;
    if (navigation.outcomes()[i].is_superseded) continue;
    if (!status.ok() && failed++ == 0) first = Annotate(status, FileName(navigation.paths()[i]));
  }
  if (failed == 0) return absl::OkStatus();
  return Annotate(first, absl::StrCat(failed, " of ", navigation.paths().size(), " frames failed, the first"));
}

absl::Status MakeFolder(const std::string& folder) {
  if (folder.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? Annotate(io::FileError("cannot be created", error.value()), folder) : absl::OkStatus();
}

// Two fields must not share a file.
absl::Status CheckFieldNames(const std::vector<std::string>& paths, bool coarse) {
  std::set<std::string> stems;
  for (const std::string& path : paths) {
    for (const char* suffix : {"", kCoarse}) {
      const std::string stem = Stem(path) + suffix;
      if ((coarse || *suffix == '\0') && !stems.insert(stem).second) {
        return absl::InvalidArgumentError(absl::StrCat("--field_dir: two fields would be called ", stem));
      }
    }
  }
  return absl::OkStatus();
}

// Puts the files of the flag's folder to the frames of the same names; a frame may have none.
absl::Status FindMasks(const ParsedFlags& flags, const std::string& flag, const std::vector<std::string>& frames,
                       std::string MaskFiles::*member, std::vector<MaskFiles>& masks) {
  if (!flags.Has(flag)) return absl::OkStatus();
  std::map<std::string, size_t> frame_of;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (frame_of.emplace(Stem(frames[i]), i).second) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": two frames are called ", Stem(frames[i])));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> files, VolumesInFolder(flags.String(flag)));
  for (const std::string& file : files) {
    const auto frame = frame_of.find(Stem(file));
    if (frame == frame_of.end()) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": no frame is called ", Stem(file)));
    }
    std::string& of_frame = masks[frame->second].*member;
    if (!of_frame.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, ": two files are called ", Stem(file)));
    }
    of_frame = file;
  }
  return absl::OkStatus();
}

// All but what lies on a server.
v1::NavigateConfig MakeConfig(const ParsedFlags& flags, const v1::FieldRequest& field) {
  v1::NavigateConfig config;
  if (flags.Has("field_dir")) *config.mutable_field() = field;
  if (flags.Has("coarse_field")) config.set_coarse_field(true);
  if (flags.Has("frame_masks") || flags.Has("frame_weights")) config.set_frame_masks(true);
  config.set_session_id(flags.String("session"));
  if (flags.Has("rate")) config.set_rate_hz(flags.Number("rate"));
  if (flags.Has("latest")) config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
  if (flags.Has("deadline_ms")) {
    *config.mutable_frame_deadline() = DurationToProto(std::chrono::milliseconds(flags.Integer("deadline_ms")));
  }
  return config;
}

const std::vector<PlacedBy> kPlacedBy = {{"fixed"},        {"moving"},        {"fixed_mask"},    {"moving_mask"},
                                         {"fixed_weight"}, {"moving_weight"}, {"initial", false}};

absl::Status Navigate(const ParsedFlags& flags, CommandContext& context) {
  if (flags.Has("fixed") == flags.Has("moving")) {
    return UsageError(absl::InvalidArgumentError("--fixed, --moving: exactly one names the resident volume"));
  }
  const absl::StatusOr<RegistrationFlags> registration = ParseRegistrationFlags(flags);
  if (!registration.ok()) return UsageError(registration.status());
  const absl::StatusOr<v1::FieldRequest> field = ParseFieldFlags(flags, flags.Has("field_dir"), "--field_dir");
  if (!field.ok()) return UsageError(field.status());
  const absl::Status encoding = CheckFieldEncoding(flags, registration->options);
  if (!encoding.ok()) return UsageError(encoding);
  if (flags.Has("coarse_field") && !flags.Has("field_dir")) {
    return UsageError(absl::InvalidArgumentError("--coarse_field: only --field_dir uses it"));
  }
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "report"));
  INTRAWARP_RETURN_IF_ERROR(CheckOutput(flags, "session_report"));
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<std::string> paths, VolumesInFolder(flags.String("frames")));
  const std::string field_dir = flags.String("field_dir");
  if (!field_dir.empty()) INTRAWARP_RETURN_IF_ERROR(CheckFieldNames(paths, flags.Has("coarse_field")));
  std::vector<MaskFiles> masks(paths.size());
  INTRAWARP_RETURN_IF_ERROR(FindMasks(flags, "frame_masks", paths, &MaskFiles::mask, masks));
  INTRAWARP_RETURN_IF_ERROR(FindMasks(flags, "frame_weights", paths, &MaskFiles::weight, masks));
  INTRAWARP_RETURN_IF_ERROR(MakeFolder(field_dir));

  Navigation navigation(context, std::move(paths), std::move(masks), field_dir, flags.Has("shared_memory"));
  INTRAWARP_ASSIGN_OR_RETURN(client::Route route, RouteOf(kPlacedBy, flags, context));
  StagedInputs inputs(context, flags, *registration);
  const v1::NavigateConfig config = MakeConfig(flags, *field);
  client::RoutedSession routed(
      &context.servers(), std::move(route), config,
      [&inputs](client::Client&, const std::string& address, v1::NavigateConfig& to) {
        return inputs.Stage(address, to);
      },
      context.call());
  absl::Status streamed = routed.Open();
  if (!streamed.ok() && !inputs.staged()) return streamed;
  const bool recovers = context.servers().has_several() || !context.routing_key().empty();
  if (streamed.ok()) streamed = navigation.Run(routed, config, inputs, recovers);
  const absl::Status deleted = inputs.DeleteAll(routed.address());
  PrintFrames(navigation);
  if (flags.Has("shared_memory")) TellTransfers(navigation.transfers());
  const absl::Status reported = WriteReport(navigation, registration->method, flags.String("report"));
  const absl::Status summed_up = WriteSessionReport(navigation, flags.String("session_report"));
  for (const absl::Status& status : {streamed, FailedFrames(navigation), reported, summed_up, deleted}) {
    INTRAWARP_RETURN_IF_ERROR(status);
  }
  return CheckVerdicts(flags, navigation);
}

std::vector<FlagSpec> NavigateFlagSpecs() {
  std::vector<FlagSpec> specs = {
      {.name = "fixed", .placeholder = "X", .help = "the resident volume; frames are the moving images"},
      {.name = "moving", .placeholder = "X", .help = "the resident volume; frames are the fixed images"},
      {.name = "frames",
       .placeholder = "DIR",
       .help = "every volume in it, in the order of names (f8 before f16)",
       .required = true},
      {.name = "frame_masks",
       .placeholder = "DIR",
       .help = "masks of single frames, in files of the frames' names, in the place of the mask of all frames"},
      {.name = "frame_weights",
       .placeholder = "DIR",
       .help = "weights of single frames, in files of the frames' names"},
      {.name = "field_dir", .placeholder = "DIR", .help = "where a displacement field for each frame goes"},
      {.name = "coarse_field",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "each frame's field before the finest level goes there, too, as NAME.coarse.nii.gz"},
      {.name = "report", .placeholder = "OUT.json", .help = "a list of reports, one a frame"},
      {.name = "rate",
       .type = FlagType::kNumber,
       .placeholder = "HZ",
       .help = "frames a second to send (as fast as they are taken)",
       .minimum = 0.001,
       .maximum = 1000},
      {.name = "deadline_ms",
       .type = FlagType::kInteger,
       .placeholder = "N",
       .help = "a frame without an answer so long after its receipt fails",
       .minimum = 1,
       .maximum = 86400000},
      {.name = "latest",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "a newer frame supersedes one that waits"},
      {.name = "shared_memory",
       .type = FlagType::kSwitch,
       .placeholder = "",
       .help = "frames and fields through memory that a server on this host shares"},
      {.name = "session", .placeholder = "ID", .help = "the session's name; it is resumed when the connection breaks"},
      {.name = "session_report", .placeholder = "OUT.json", .help = "the session's counts and latency percentiles"},
      RequireOkFlagSpec(),
      OrientationFlagSpec(),
  };
  for (FlagSpec& spec : RegistrationFlagSpecs()) specs.push_back(std::move(spec));
  for (FlagSpec& spec : FieldFlagSpecs()) specs.push_back(std::move(spec));
  return specs;
}

}  // namespace

std::vector<Command> NavigateCommands() {
  return {
      {.name = "navigate",
       .summary = "register a stream of frames to a resident volume, each from the last good result",
       .syntax = {.flags = NavigateFlagSpecs()},
       .reach = Reach::kOwn,
       .run = Navigate,
       .notes =
           "Prints one line a frame: name, verdict, latency, reasons, expected error; a terminal shows these names.\n"
           "A frame that fails is reported, and the next one starts from the last good result; the exit status is\n"
           "then 1. Without --method the server chooses by the first frame.\n"
           "A frame without a file in --frame_masks has the mask --moving_mask; with --moving, where the frames are\n"
           "the fixed images, --fixed_mask. The same holds for weights. A file in --frame_masks or --frame_weights\n"
           "is uploaded before its frame, and deleted after the frame's answer.\n"
           "A frame that --latest supersedes is not a failure. With several servers (or --routing_key) a session\n"
           "whose server fails goes on, on the next one; a line on stderr says where, and from what.\n"
           "--shared_memory takes a server on this host with --shared_memory=PATH, and fails where there is none;\n"
           "a line on stderr says how many frames and fields went through it, and how many in chunks.\n"}};
}

}  // namespace intrawarp::cli
