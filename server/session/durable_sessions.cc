// SPDX-License-Identifier: Apache-2.0
#include "server/session/durable_sessions.h"

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/base/names.h"
#include "server/monitor/log.h"
#include "server/registration/stage_messages.h"
#include "server/restore/restore.h"
#include "server/session/navigate_session.h"
#include "server/session/session_setup.h"
#include "server/session/session_store.h"
#include "server/session/warm_up.h"
#include "server/store/durable_objects.h"

namespace intrawarp::server {
namespace {

// A session as its row has it.
struct DurableSession {
  v1::NavigateConfig config;
  v1::Session session;
  std::vector<StageOptions> chosen;
};

absl::StatusOr<DurableSession> Parse(const state::SessionRow& row) {
  DurableSession saved;
  v1::RegistrationOptions chosen;
  if (!saved.config.ParseFromString(row.config) || !saved.session.ParseFromString(row.description) ||
      !chosen.ParseFromString(row.chosen)) {
    return absl::DataLossError("its row is damaged");
  }
  for (const v1::Stage& stage : chosen.stages()) {
    INTRAWARP_ASSIGN_OR_RETURN(StageOptions options, StageFromProto(stage));
    saved.chosen.push_back(std::move(options));
  }
  return saved;
}

// The session of the config among what is durable now. Other objects may have taken the ids of its own.
absl::StatusOr<SessionSetup> Resolve(const ServerContext& context, const state::SessionRow& row,
                                     const DurableSession& saved) {
  v1::NavigateConfig config = saved.config;
  // The last good transform has taken its place, and it may be gone.
  const bool has_begun = !row.start_header.empty();
  if (has_begun) config.mutable_options()->clear_initial_transform();
  const Identity opener{row.owner, row.by_admin ? Roles(Role::kAdmin) : Roles()};
  INTRAWARP_ASSIGN_OR_RETURN(SessionSetup setup, ResolveNavigateConfig(context, config, opener));
  if (!HasPrint(setup, row.resident, /*with_start=*/!has_begun)) {
    return absl::FailedPreconditionError(
        "its volume, a mask, weights or its initial transform has been replaced by another one");
  }
  if (!setup.is_durable) return absl::FailedPreconditionError("it has no resume window");
  setup.asked = saved.config;
  return setup;
}

absl::Status WarmUpAndWait(const std::shared_ptr<NavigateSession>& session) {
  // Outlives the waiter, who may go while set_value still runs.
  const auto warm = std::make_shared<std::promise<absl::Status>>();
  WarmUpRestored(session, [warm](const absl::StatusOr<bool>& done) { warm->set_value(done.status()); });
  return warm->get_future().get();
}

absl::StatusOr<std::shared_ptr<const GoodResult>> MakeStart(NavigateSession& session, const state::SessionRow& row,
                                                            const DurableSession& saved) {
  if (row.start_header.empty()) return nullptr;
  INTRAWARP_ASSIGN_OR_RETURN(
      const std::shared_ptr<const StoredTransform> transform,
      MakeDurableTransform(session.context(), {row.start_header, row.payload, row.payload_bytes}, row.start_description,
                           [&session](int64_t bytes) { return session.ReserveResult(bytes); }));
  return std::make_shared<const GoodResult>(
      GoodResult{saved.session.start_frame_number(), transform->reservation, transform->transform, saved.chosen});
}

absl::Status Open(const std::shared_ptr<NavigateSession>& session, const state::SessionRow& row,
                  const DurableSession& saved) {
  INTRAWARP_RETURN_IF_ERROR(WarmUpAndWait(session));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const GoodResult> start, MakeStart(*session, row, saved));
  session->Restore(row, saved.session, std::move(start));
  return absl::OkStatus();
}

absl::Status RestoreSession(ServerContext& context, const state::SessionRow& row) {
  INTRAWARP_ASSIGN_OR_RETURN(const DurableSession saved, Parse(row));
  INTRAWARP_ASSIGN_OR_RETURN(SessionSetup setup, Resolve(context, row, saved));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<NavigateSession> session,
                             context.sessions.OpenWith(context, row.id, std::move(setup)));
  const absl::Status opened = Open(session, row, saved);
  if (!opened.ok()) session->Close(opened);
  return opened;
}

// A disk that takes no removal does so with every start.
void Forget(ServerContext& context, const state::SessionRow& row, const absl::Status& why) {
  Log(Severity::kError, "session_not_restored", {{"session", SessionName(row.id)}, {"cause", why.ToString()}});
  const absl::Status removed = context.durable.RemoveSession(row);
  if (removed.ok()) return;
  Log(Severity::kError, "session_not_removed", {{"session", SessionName(row.id)}, {"cause", removed.ToString()}});
}

// Other errors (no room, a device or a disk that does not answer) may be gone at the next start, which tries again.
bool IsForGood(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsFailedPrecondition(status) ||
         absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status);
}

}  // namespace

absl::Status RestoreSessions(ServerContext& context) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<state::SessionRow> rows, context.durable.state().ListSessions());
  int64_t restored = 0;
  for (const state::SessionRow& row : rows) {
    const absl::Status status = RestoreSession(context, row);
    if (IsForGood(status)) {
      Forget(context, row, status);
    } else if (!status.ok()) {
      Log(Severity::kError, "session_not_restored", {{"session", SessionName(row.id)}, {"cause", status.ToString()}});
    }
    restored += status.ok() ? 1 : 0;
  }
  if (rows.empty()) return absl::OkStatus();
  Log(Severity::kInfo, "sessions_restored",
      {{"sessions", absl::StrCat(restored)}, {"lost", absl::StrCat(static_cast<int64_t>(rows.size()) - restored)}});
  return absl::OkStatus();
}

}  // namespace intrawarp::server
