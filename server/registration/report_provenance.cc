// SPDX-License-Identifier: Apache-2.0
#include "server/registration/report_provenance.h"

#include "server/base/version.h"
#include "wire/convert.h"

namespace intrawarp::server {

v1::ReportProvenance MakeProvenance(const ReportedImages& images, const RegistrationPlan& plan, const Seams& seams,
                                    std::chrono::nanoseconds elapsed) {
  using std::chrono::system_clock;
  const BuildInfo build = ThisBuild();
  const system_clock::time_point now = seams.system_now();
  v1::ReportProvenance provenance;
  provenance.set_server_version(build.version);
  provenance.set_server_revision(build.revision);
  *provenance.mutable_receive_time() =
      TimestampToProto(now - std::chrono::duration_cast<system_clock::duration>(elapsed));
  *provenance.mutable_report_time() = TimestampToProto(now);
  if (images.fixed != nullptr) {
    provenance.set_fixed(VolumeName(images.fixed->id));
    provenance.set_fixed_digest(images.fixed->content_digest);
  }
  if (images.moving != nullptr) {
    provenance.set_moving(VolumeName(images.moving->id));
    provenance.set_moving_digest(images.moving->content_digest);
  }
  if (plan.fixed_mask != nullptr) provenance.set_fixed_mask_digest(plan.fixed_mask->content_digest);
  if (plan.moving_mask != nullptr) provenance.set_moving_mask_digest(plan.moving_mask->content_digest);
  if (plan.fixed_weight != nullptr) provenance.set_fixed_weight_digest(plan.fixed_weight->content_digest);
  if (plan.moving_weight != nullptr) provenance.set_moving_weight_digest(plan.moving_weight->content_digest);
  return provenance;
}

}  // namespace intrawarp::server
