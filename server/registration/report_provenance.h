// SPDX-License-Identifier: Apache-2.0
// The origin of a report: the program, the times and the images. Thread-safe.
#ifndef INTRAWARP_SERVER_REGISTRATION_REPORT_PROVENANCE_H_
#define INTRAWARP_SERVER_REGISTRATION_REPORT_PROVENANCE_H_

#include <chrono>

#include "intrawarp/v1/registration.pb.h"
#include "server/base/names.h"
#include "server/registration/registration_options.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// Null: the image is a frame, which is not a resource.
struct ReportedImages {
  const StoredVolume* fixed = nullptr;
  const StoredVolume* moving = nullptr;
};

// The provenance of a report that is made now, `elapsed` after its request, or its frame's header, was received.
v1::ReportProvenance MakeProvenance(const ReportedImages& images, const RegistrationPlan& plan, const Seams& seams,
                                    std::chrono::nanoseconds elapsed);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_REPORT_PROVENANCE_H_
