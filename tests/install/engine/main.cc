// SPDX-License-Identifier: Apache-2.0
// Registers a pair of phantoms, of which one is shifted by 5 mm, on the CPU device, and prints what was found and
// whether to trust it.
#include <cmath>
#include <cstdio>
#include <vector>

#include "engine/device/device.h"
#include "engine/registration/assess.h"

using namespace intrawarp;

// Blobs on a grid of 48^3 voxels of 2 mm, the whole body moved by `shift_mm` along x.
static std::vector<float> Phantom(const Geometry& grid, double shift_mm) {
  const double blobs[][4] = {{40, 48, 48, 22}, {66, 34, 52, 10}, {30, 66, 40, 8}, {52, 60, 66, 12}, {44, 40, 28, 9}};
  std::vector<float> values;
  for (int z = 0; z < grid.size.z; ++z) {
    for (int y = 0; y < grid.size.y; ++y) {
      for (int x = 0; x < grid.size.x; ++x) {
        double sum = 0;
        for (const auto& [bx, by, bz, radius] : blobs) {
          const double dx = 2 * x - bx - shift_mm, dy = 2 * y - by, dz = 2 * z - bz;
          sum += 100 * std::exp(-(dx * dx + dy * dy + dz * dz) / (radius * radius));
        }
        values.push_back(static_cast<float>(sum));
      }
    }
  }
  return values;
}

static absl::StatusOr<AssessedRegistration> Run() {
  const auto device = OpenDevice("cpu");
  if (!device.ok()) return device.status();
  const Geometry grid{.size = {48, 48, 48}, .spacing = {2, 2, 2}};
  auto small = OwnedContext::Create(**device, int64_t{64} << 20);
  if (!small.ok()) return small.status();
  const auto prepare = [&](const std::vector<float>& values) {
    return PreparedImage::Prepare(small->context(), values.data(), PixelType::kFloat32, 1, 0, grid);
  };
  const auto fixed = prepare(Phantom(grid, 0)), moving = prepare(Phantom(grid, 5));
  if (!fixed.ok()) return fixed.status();
  if (!moving.ok()) return moving.status();
  RegistrationInput input{.fixed = &*fixed, .moving = &*moving, .stages = {AffineOptions{}}};
  auto context = OwnedContext::Create(**device, AssessedWorkspaceBytes(**device, input));
  if (!context.ok()) return context.status();
  return RegisterAndAssess(context->context(), input);
}

int main() {
  const absl::StatusOr<AssessedRegistration> answer = Run();
  if (!answer.ok()) return std::fprintf(stderr, "%s\n", answer.status().ToString().c_str()), 1;
  std::printf("shift %.1f mm, verdict %s\n", answer->result.transform.affine().m[0][3],
              NeedsReview(answer->quality.review_reasons) ? "review" : "ok");
  return 0;
}
