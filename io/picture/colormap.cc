// SPDX-License-Identifier: Apache-2.0
#include "io/picture/colormap.h"

#include <algorithm>
#include <cmath>

namespace intrawarp::io {
namespace {

struct Oklab {
  float lightness, a, b;
};

float Linear(float v) { return v <= 0.04045f ? v / 12.92f : std::pow((v + 0.055f) / 1.055f, 2.4f); }
float Companded(float v) {
  const float c = std::clamp(v, 0.f, 1.f);
  return c <= 0.0031308f ? 12.92f * c : 1.055f * std::pow(c, 1 / 2.4f) - 0.055f;
}

// Ottosson 2020, "A perceptual color space for image processing".
Oklab ToOklab(Color color) {
  const float r = Linear(color.r), g = Linear(color.g), b = Linear(color.b);
  const float l = std::cbrt(0.4122214708f * r + 0.5363325363f * g + 0.0514459929f * b);
  const float m = std::cbrt(0.2119034982f * r + 0.6806995451f * g + 0.1073969566f * b);
  const float s = std::cbrt(0.0883024619f * r + 0.2817188376f * g + 0.6299787005f * b);
  return {0.2104542553f * l + 0.7936177850f * m - 0.0040720468f * s,
          1.9779984951f * l - 2.4285922050f * m + 0.4505937099f * s,
          0.0259040371f * l + 0.7827717662f * m - 0.8086757660f * s};
}

Color FromOklab(Oklab lab) {
  const float l = lab.lightness + 0.3963377774f * lab.a + 0.2158037573f * lab.b;
  const float m = lab.lightness - 0.1055613458f * lab.a - 0.0638541728f * lab.b;
  const float s = lab.lightness - 0.0894841775f * lab.a - 1.2914855480f * lab.b;
  const float l3 = l * l * l, m3 = m * m * m, s3 = s * s * s;
  return {Companded(4.0767416621f * l3 - 3.3077115913f * m3 + 0.2309699292f * s3),
          Companded(-1.2684380046f * l3 + 2.6097574011f * m3 - 0.3413193965f * s3),
          Companded(-0.0041960863f * l3 - 0.7034186147f * m3 + 1.7076147010f * s3)};
}

Color MixOklab(Color from, Color to, float t) {
  const Oklab a = ToOklab(from), b = ToOklab(to);
  const auto mix = [t](float x, float y) { return x + t * (y - x); };
  return FromOklab({mix(a.lightness, b.lightness), mix(a.a, b.a), mix(a.b, b.b)});
}

}  // namespace

Color Mix(Color a, Color b, float t) { return {a.r + t * (b.r - a.r), a.g + t * (b.g - a.g), a.b + t * (b.b - a.b)}; }

Color Diverging(float value) {
  constexpr Color kZero{0.03f, 0.03f, 0.04f}, kPositive{1.f, 0.64f, 0.2f}, kNegative{0.38f, 0.77f, 1.f};
  return MixOklab(kZero, value > 0 ? kPositive : kNegative, std::min(std::abs(value), 1.f));
}

Color Sequential(float value) {
  constexpr Color kStops[4] = {{0.229739f, 0.322361f, 0.545706f},
                               {0.127568f, 0.566949f, 0.550556f},
                               {0.369214f, 0.788888f, 0.382914f},
                               {0.993248f, 0.906157f, 0.143936f}};
  const float at = 3 * std::clamp(value, 0.f, 1.f);
  const int stop = std::min(2, static_cast<int>(at));
  return Mix(kStops[stop], kStops[stop + 1], at - stop);
}

}  // namespace intrawarp::io
