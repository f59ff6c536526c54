// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/frame_session.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "tests/bench/interference/statistics.h"

namespace intrawarp::bench {
namespace {

constexpr char kUnanswered[] = "unanswered";

absl::StatusOr<v1::FieldEncoding> EncodingOf(const std::string& name, const v1::Stage& last) {
  if (name == "int16") return v1::FIELD_ENCODING_INT16;
  if (name == "float16") return v1::FIELD_ENCODING_FLOAT16;
  if (name == "float32") return v1::FIELD_ENCODING_FLOAT32;
  if (name == "native" && last.has_ffd()) return v1::FIELD_ENCODING_CONTROL_POINTS;
  if (name == "native" && last.has_log_demons()) return v1::FIELD_ENCODING_VELOCITY;
  return absl::InvalidArgumentError(absl::StrCat("--encodings: ", name, " is none of this method"));
}

}  // namespace

absl::StatusOr<v1::NavigateConfig> ConfigOf(const FrameLoad& load) {
  v1::NavigateConfig config;
  config.set_moving(Site::RestName(load.size));
  INTRAWARP_ASSIGN_OR_RETURN(*config.mutable_options(), OptionsOfMethod(load.method));
  if (load.encoding == "none") return config;
  INTRAWARP_ASSIGN_OR_RETURN(const v1::FieldEncoding encoding,
                             EncodingOf(load.encoding, *config.options().stages().rbegin()));
  config.mutable_field()->set_encoding(encoding);
  return config;
}

std::vector<double> FrameLog::Milliseconds() const {
  std::vector<double> values;
  for (const FrameRecord& frame : frames) {
    if (frame.ok()) values.push_back(frame.milliseconds());
  }
  return values;
}

int64_t FrameLog::Late() const {
  if (period == 0) return 0;
  return std::count_if(frames.begin(), frames.end(),
                       [this](const FrameRecord& frame) { return !frame.ok() || frame.answered - frame.due > period; });
}

int64_t FrameLog::Failed() const {
  return std::count_if(frames.begin(), frames.end(), [](const FrameRecord& frame) { return !frame.ok(); });
}

double FrameLog::Rate() const {
  double last = to;
  for (const FrameRecord& frame : frames) {
    if (frame.ok()) last = std::max(last, frame.answered);
  }
  return last > from ? static_cast<double>(static_cast<int64_t>(frames.size()) - Failed()) / (last - from) : 0;
}

std::map<std::string, int64_t> FrameLog::Errors() const {
  std::map<std::string, int64_t> errors;
  for (const FrameRecord& frame : frames) {
    if (!frame.ok()) ++errors[frame.error];
  }
  return errors;
}

void FrameLog::Append(const FrameLog& other) {
  period = other.period;
  from = other.from;
  to = other.to;
  frames.insert(frames.end(), other.frames.begin(), other.frames.end());
}

void AddFrames(const FrameLog& log, Row* row) {
  row->Add("n", static_cast<double>(log.frames.size()), 0).Add("fps", log.Rate(), 2);
  row->AddPercentiles(log.Milliseconds());
  row->Add("late", static_cast<double>(log.Late()), 0).Add("failed", static_cast<double>(log.Failed()), 0);
  row->Add("errors", Tally(log.Errors()));
}

void AddPhases(const FrameLog& log, double part, Row* row) {
  std::vector<FrameRecord> frames;
  for (const FrameRecord& frame : log.frames) {
    if (frame.ok()) frames.push_back(frame);
  }
  std::sort(frames.begin(), frames.end(),
            [](const FrameRecord& a, const FrameRecord& b) { return a.milliseconds() > b.milliseconds(); });
  frames.resize(static_cast<size_t>(std::ceil(part * static_cast<double>(frames.size()))));
  const auto mean = [&](const auto& value) {
    double sum = 0;
    for (const FrameRecord& frame : frames) sum += value(frame);
    return frames.empty() ? std::nan("") : sum / static_cast<double>(frames.size());
  };
  using Latency = v1::LatencyBreakdown;
  const auto phase = [&](const std::string& name, double (Latency::*value)() const) {
    row->Add(name, mean([&](const FrameRecord& f) { return (f.latency.*value)(); }), 2);
  };
  row->Add("n", static_cast<double>(frames.size()), 0);
  row->Add("client", mean([](const FrameRecord& f) { return f.milliseconds(); }), 2);
  row->Add("outside", mean([](const FrameRecord& f) { return f.milliseconds() - f.latency.total_ms(); }), 2);
  phase("receive", &Latency::receive_ms);
  phase("admit", &Latency::admit_ms);
  phase("queue", &Latency::queue_ms);
  phase("upload", &Latency::upload_ms);
  phase("prepare", &Latency::prepare_ms);
  phase("optimise", &Latency::optimise_ms);
  phase("assess", &Latency::assess_ms);
  phase("encode", &Latency::encode_ms);
  phase("download", &Latency::download_ms);
  phase("send", &Latency::send_ms);
}

absl::StatusOr<std::unique_ptr<FrameSession>> FrameSession::Open(Site& site, const FrameLoad& load) {
  INTRAWARP_ASSIGN_OR_RETURN(const BreathSequence* images, site.Images(load.size));
  INTRAWARP_ASSIGN_OR_RETURN(const v1::NavigateConfig config, ConfigOf(load));
  std::unique_ptr<FrameSession> session(new FrameSession(*images, load));
  INTRAWARP_ASSIGN_OR_RETURN(session->client_, site.Connect());
  session->stream_ = session->client_->Navigate(config);
  INTRAWARP_RETURN_IF_ERROR(session->Warm());
  return session;
}

FrameSession::~FrameSession() {
  if (sender_.joinable()) Finish();
}

absl::Status FrameSession::Warm() {
  INTRAWARP_ASSIGN_OR_RETURN(const client::FrameAnswer answer, Exchange(1));
  return client::FromRpcStatus(answer.result.status());
}

client::Frame FrameSession::MakeFrame(int64_t number) const {
  client::Frame frame;
  frame.number = number;
  frame.geometry = images_.geometry();
  frame.pixel_type = PixelType::kInt16;
  frame.bytes = BytesOf(images_.phases()[number % images_.phases().size()].voxels);
  return frame;
}

absl::StatusOr<client::FrameAnswer> FrameSession::Exchange(int64_t number) {
  INTRAWARP_RETURN_IF_ERROR(stream_->Send(MakeFrame(number)));
  INTRAWARP_ASSIGN_OR_RETURN(std::optional<client::FrameAnswer> answer, stream_->Receive(client::SinkInto(&field_)));
  if (!answer) return absl::UnavailableError("the stream ended");
  return *std::move(answer);
}

void FrameSession::Start(double from, double to) {
  load_.from = from;
  load_.to = to;
  if (load_.rate == 0) {
    sender_ = std::thread([this] { ExchangeLoop(); });
    return;
  }
  const auto count = static_cast<int64_t>(std::max(1.0, std::ceil((to - from) * load_.rate - load_.phase)));
  for (int64_t n = 0; n < count; ++n) {
    frames_.push_back({from + (static_cast<double>(n) + load_.phase) / load_.rate, std::nan(""), kUnanswered, {}});
  }
  sender_ = std::thread([this] { SendLoop(); });
  receiver_ = std::thread([this] { ReceiveLoop(); });
}

void FrameSession::SendLoop() {
  for (size_t n = 0; n < frames_.size(); ++n) {
    SleepUntil(frames_[n].due);
    if (!stream_->Send(MakeFrame(static_cast<int64_t>(n) + 2)).ok()) return;
  }
  (void)stream_->CloseSend();
}

void FrameSession::ReceiveLoop() {
  while (true) {
    const absl::StatusOr<std::optional<client::FrameAnswer>> answer = stream_->Receive(client::SinkInto(&field_));
    if (!answer.ok()) end_ = ErrorName(answer.status());
    if (!answer.ok() || !answer->has_value()) break;
    Record(**answer);
  }
  received_ = true;
}

void FrameSession::Record(const client::FrameAnswer& answer) {
  const double now = Now();
  const int64_t number = answer.result.frame_number() - 2;
  if (number < 0 || number >= static_cast<int64_t>(frames_.size())) return;
  FrameRecord& frame = frames_[number];
  const absl::Status status = client::FromRpcStatus(answer.result.status());
  frame.answered = now;
  frame.error = status.ok() ? "" : ErrorName(status);
  frame.latency = answer.result.report().latency();
}

void FrameSession::ExchangeLoop() {
  SleepUntil(load_.from);
  while (Now() < load_.to) {
    frames_.push_back({Now(), std::nan(""), kUnanswered, {}});
    const absl::StatusOr<client::FrameAnswer> answer = Exchange(static_cast<int64_t>(frames_.size()) + 1);
    if (!answer.ok()) {
      frames_.back().error = ErrorName(answer.status());
      break;
    }
    Record(*answer);
  }
  received_ = true;
}

FrameLog FrameSession::Finish() {
  const double limit = load_.to + kGrace;
  while (!received_ && Now() < limit) SleepUntil(Now() + 0.01);
  const bool cancelled = !received_;
  if (cancelled) stream_->Cancel();
  if (sender_.joinable()) sender_.join();
  if (receiver_.joinable()) receiver_.join();
  for (FrameRecord& frame : frames_) {
    if (frame.error == kUnanswered && !cancelled && !end_.empty()) frame.error = "stream ended: " + end_;
  }
  return {load_.rate > 0 ? 1 / load_.rate : 0, load_.from, load_.to, frames_};
}

absl::StatusOr<FrameLog> RunSession(Site& site, FrameLoad load) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<FrameSession> session, FrameSession::Open(site, load));
  const double from = Now() + 0.1;
  session->Start(from, from + site.options().seconds);
  return session->Finish();
}

}  // namespace intrawarp::bench
