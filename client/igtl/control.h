// SPDX-License-Identifier: Apache-2.0
// Words of control, from STRING ("volume volumes/ct") and COMMAND (name "volume", content "volumes/ct"). Thread-safe
// functions.
#ifndef INTRAWARP_CLIENT_IGTL_CONTROL_H_
#define INTRAWARP_CLIENT_IGTL_CONTROL_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/igtl/frame_session.h"

namespace intrawarp::igtl {

// The argument of a COMMAND's content: the content without white space around it or, of an XML element, the value of
// its first attribute Value.
std::string ArgumentOf(absl::string_view content);

// start, stop, volume NAME, method METHOD, status (`status_text`); letters' case does not count. The answer in words.
// NOT_FOUND for another word, INVALID_ARGUMENT for a wrong argument.
absl::StatusOr<std::string> Execute(absl::string_view word, absl::string_view argument, const std::string& status_text,
                                    FrameSession& session);

// The content of the answer to a COMMAND, in the form that 3D Slicer reads.
std::string ResultXml(bool is_ok, absl::string_view message);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CONTROL_H_
