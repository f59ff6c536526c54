// SPDX-License-Identifier: Apache-2.0
#include "server/session/warm_up.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "engine/base/status_macros.h"
#include "engine/registration/registration.h"
#include "server/base/wire.h"
#include "server/base/worker_pool.h"
#include "server/job/job_support.h"
#include "server/session/navigate_frame.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"

namespace intrawarp::server {
namespace {

constexpr int kWarmIterations = 2;
constexpr double kPeak = 100;  // within every type of pixels

// 1 in the middle of an axis, falling to 0 at its ends.
double Ramp(int64_t i, int64_t n) {
  const double from_middle = std::abs(2 * static_cast<double>(i) + 1 - static_cast<double>(n));
  return 1 - from_middle / static_cast<double>(n);
}

// A bright middle, so that every metric has something to compare.
template <typename T>
void FillPeak(const Int3& size, T* pixels) {
  for (int64_t z = 0; z < size.z; ++z) {
    for (int64_t y = 0; y < size.y; ++y) {
      const double row = kPeak * Ramp(y, size.y) * Ramp(z, size.z);
      for (int64_t x = 0; x < size.x; ++x) *pixels++ = static_cast<T>(row * Ramp(x, size.x));
    }
  }
}

void FillPeak(PixelType type, const Int3& size, const PinnedBuffer& memory) {
  switch (type) {
    case PixelType::kUint8:
      return FillPeak(size, memory.as<uint8_t>());
    case PixelType::kInt8:
      return FillPeak(size, memory.as<int8_t>());
    case PixelType::kUint16:
      return FillPeak(size, memory.as<uint16_t>());
    case PixelType::kInt16:
      return FillPeak(size, memory.as<int16_t>());
    case PixelType::kUint32:
      return FillPeak(size, memory.as<uint32_t>());
    case PixelType::kInt32:
      return FillPeak(size, memory.as<int32_t>());
    case PixelType::kFloat32:
      return FillPeak(size, memory.as<float>());
    case PixelType::kFloat64:
      return FillPeak(size, memory.as<double>());
  }
}

// The session's setup with little to do. Where the registration chooses, two frames run all that it chooses from.
SessionSetup ShortSetup(SessionSetup setup, bool is_first) {
  const Geometry& fixed = setup.resident_is_fixed ? setup.resident->image.geometry() : setup.expected.geometry;
  const Geometry& moving = setup.resident_is_fixed ? setup.expected.geometry : setup.resident->image.geometry();
  PlannedStages planned = StagesFor(setup.plan, fixed, moving);
  setup.plan.stages = std::move(planned.stages);
  setup.plan.automatic = false;
  if (planned.automatic) {
    const std::vector<std::vector<StageOptions>> pipelines = AutomaticPipelines(fixed);
    setup.plan.stages = is_first ? pipelines.front() : pipelines.back();
  }
  const auto shorten = [](auto& options) {
    if constexpr (requires { options.iterations; }) {
      options.iterations = std::min(options.iterations.value_or(kWarmIterations), kWarmIterations);
    }
    if constexpr (requires { options.finest_iterations; }) options.finest_iterations.reset();
  };
  for (StageOptions& stage : setup.plan.stages) std::visit(shorten, stage);
  setup.plan.budget.reset();
  return setup;
}

// Whether the error is one of the server's state, not of the images and options.
bool KeepsFromOpening(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status) || absl::IsInternal(status) ||
         absl::IsCancelled(status) || ReasonOf(status) == v1::EXCEEDS_CAPACITY;
}

// One opening; lives until `done` was called.
class Opening : public std::enable_shared_from_this<Opening> {
 public:
  using DoneFn = std::function<void(const absl::StatusOr<bool>& warm)>;

  Opening(std::shared_ptr<NavigateSession> session, bool is_restored, DoneFn done)
      : context_(session->context()),
        session_(std::move(session)),
        keep_(session_->is_durable() && !is_restored),
        done_(std::move(done)) {}

  void Start() {
    context_.workers.Submit([self = shared_from_this()] {
      BringTo(self->context_, self->session_->MutableInputs(), Share::kSession,
              [self](const absl::Status& status) { self->Reserve(status); });
    });
  }

 private:
  // Page-locking takes its time.
  void Reserve(const absl::Status& brought) {
    if (!brought.ok()) return Fail(brought);
    context_.workers.Submit([self = shared_from_this()] {
      const absl::Status status = self->Prepare();
      if (!status.ok()) self->Done(status);
    });
  }

  absl::Status Prepare() {
    INTRAWARP_RETURN_IF_ERROR(session_->Reserve());
    const ExpectedFrame& expected = session_->setup().expected;
    frame_ = std::make_shared<NavigateFrame>(context_, context_.seams.steady_now());
    frame_->record.Repeated();  // it is nobody's
    frame_->geometry = expected.geometry;
    frame_->pixel_type = expected.pixel_type;
    frame_->total_bytes = *ImageBytes(expected.geometry, BytesPerPixel(expected.pixel_type));
    frame_->control.emplace(context_.seams, std::nullopt);
    INTRAWARP_RETURN_IF_ERROR(MakePixels());
    return Submit();
  }

  absl::Status MakePixels() {
    frame_->memory = session_->TakeFrameBuffer(frame_->total_bytes);
    if (frame_->memory == nullptr) return absl::CancelledError("the session was closed");
    FillPeak(frame_->pixel_type, frame_->geometry.size, *frame_->memory);
    return absl::OkStatus();
  }

  absl::Status Submit() {
    Job job;
    job.job_class = JobClass::kFrame;
    job.owner = session_.get();
    job.party = session_->owner();
    job.workspace_bytes = FrameJobBytes(context_.device, *frame_);
    job.run = [self = shared_from_this()](const absl::StatusOr<const ExecContext*>& ctx) {
      const absl::Status status = ctx.ok() ? self->Run(**ctx) : ctx.status();
      self->frame_.reset();
      self->Done(status);
    };
    // A session that was closed before its job had an owner to cancel.
    if (session_->state() == NavigateSession::State::kClosed) return absl::CancelledError("the session was closed");
    return SubmitJob(context_, std::move(job));
  }

  // The second frame starts from the first one's result, as the session's frames will, which takes other kernels. Two
  // iterations on made-up pixels may be no start that a method can go on from; its kernels are loaded all the same.
  absl::Status Run(const ExecContext& ctx) {
    INTRAWARP_RETURN_IF_ERROR(Register(ctx, nullptr));
    if (!frame_->is_good_start) return RunMasked(ctx, nullptr);
    const RegistrationOutcome first = std::move(frame_->outcome);
    INTRAWARP_RETURN_IF_ERROR(MakePixels());
    const absl::Status again = Register(ctx, &first.result.transform);
    if (KeepsFromOpening(again)) return again;
    return RunMasked(ctx, &first.result.transform);
  }

  // With a mask, then with weights, which take kernels of their own. Weights are half and more: every voxel counts.
  absl::Status RunMasked(const ExecContext& ctx, const Transform* initial) {
    if (!session_->setup().frame_masks) return absl::OkStatus();
    frame_->rescale = {0.5 / kPeak, 0.5};
    for (const auto self_mask : {NavigateFrame::SelfMask::kMask, NavigateFrame::SelfMask::kWeight}) {
      frame_->self_mask = self_mask;
      INTRAWARP_RETURN_IF_ERROR(MakePixels());
      const absl::Status masked = Register(ctx, initial);
      if (KeepsFromOpening(masked)) return masked;
    }
    return absl::OkStatus();
  }

  absl::Status Register(const ExecContext& ctx, const Transform* initial) {
    FrameHooks hooks{[this](int64_t bytes) { return session_->ReserveResult(bytes); }, {}, {}};
    if (session_->setup().field) {
      hooks.field = FieldOutput{*session_->setup().field, nullptr,
                                [this](int64_t bytes) { return session_->TakeFieldBuffer(bytes); },
                                [](const v1::FieldHeader&, const std::shared_ptr<BulkBuffer>&) {}, [] { return true; }};
    }
    if (session_->setup().coarse_field) hooks.coarse_field = hooks.field;
    return RegisterFrame(ctx, ShortSetup(session_->setup(), initial == nullptr), {initial, {}}, hooks, *frame_);
  }

  void Done(const absl::Status& status) {
    if (KeepsFromOpening(status)) return Fail(status);
    if (!keep_) return done_(status.ok());
    context_.durable.Run([self = shared_from_this(), warm = status.ok()] {
      const absl::Status kept = self->session_->Keep();
      if (!kept.ok()) return self->Fail(kept);
      self->done_(warm);
    });
  }

  void Fail(const absl::Status& status) {
    session_->Close(status);
    done_(status);
  }

  DeviceContext& context_;
  const std::shared_ptr<NavigateSession> session_;
  const bool keep_;
  const DoneFn done_;
  std::shared_ptr<NavigateFrame> frame_;
};

}  // namespace

void WarmUp(std::shared_ptr<NavigateSession> session, std::function<void(const absl::StatusOr<bool>& warm)> done) {
  std::make_shared<Opening>(std::move(session), /*is_restored=*/false, std::move(done))->Start();
}

void WarmUpRestored(std::shared_ptr<NavigateSession> session,
                    std::function<void(const absl::StatusOr<bool>& warm)> done) {
  std::make_shared<Opening>(std::move(session), /*is_restored=*/true, std::move(done))->Start();
}

}  // namespace intrawarp::server
