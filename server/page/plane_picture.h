// SPDX-License-Identifier: Apache-2.0
// The planes as pictures, for browsers without WebGL2: the same planes in the same colours as the page's shader draws
// them (server/page/assets/planes.js, warp.js), as PNG.
//
// Thread-safe functions.
#ifndef INTRAWARP_SERVER_PAGE_PLANE_PICTURE_H_
#define INTRAWARP_SERVER_PAGE_PLANE_PICTURE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/vec.h"
#include "engine/quality/predicted_error.h"
#include "server/page/shown_image.h"

namespace intrawarp::server {

enum class Plane { kAxial, kCoronal, kSagittal };
enum class PlaneMode { kFixed, kWarped, kCheckerboard, kDifference, kGrid, kJacobian, kError };

// "axial"; "fixed", as in the page's scripts. nullopt for another word.
std::optional<Plane> ParsePlane(absl::string_view name);
std::optional<PlaneMode> ParsePlaneMode(absl::string_view name);

// The images and maps of a frame; null: there is none.
struct PlaneScene {
  const ShownImage* fixed = nullptr;
  const ShownImage* moving = nullptr;
  const ShownField* field = nullptr;
  const ErrorMap* error = nullptr;
};

inline constexpr int kMostPlaneWidth = 512;

// The plane through `cross` (LPS mm), `width` pixels wide, 1 to kMostPlaneWidth. A PNG file.
absl::StatusOr<std::string> DrawPlane(const PlaneScene& scene, Plane plane, PlaneMode mode, Vec3d cross, int width);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PLANE_PICTURE_H_
