// SPDX-License-Identifier: Apache-2.0
#include "client/phantom/anatomy.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace intrawarp::phantom {
namespace {

constexpr int kNoiseSize = 32;  // a power of two
constexpr double kBodyA = 135, kBodyB = 98, kBodyY = 10;
// The surface along which organs slide: its depth below the skin, behind the ribs, and an ellipse around the spine, in
// the cross-section before the narrowing.
constexpr double kWallDepth = 32, kSpineY = 57, kSpineA = 30, kSpineB = 24;

// SplitMix64 (Steele, Lea and Flood 2014): its step, and what it makes of the state.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
uint64_t Mix(uint64_t x) {
  x += kStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double ToUnit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }

// First-order distance to an ellipsoid: f / |grad f| of f = |p / r|, scaled to be right on the surface.
double EllipsoidDistance(Vec3d p, Vec3d r) {
  const Vec3d q{p.x / r.x, p.y / r.y, p.z / r.z};
  const double k0 = Length(q);
  const double k1 = Length({q.x / r.x, q.y / r.y, q.z / r.z});
  return k1 < 1e-9 ? -std::min({r.x, r.y, r.z}) : k0 * (k0 - 1) / k1;
}

double EllipseDistance(double x, double y, double a, double b) {
  const double qx = x / a, qy = y / b;
  const double k0 = std::hypot(qx, qy), k1 = std::hypot(qx / a, qy / b);
  return k1 < 1e-9 ? -std::min(a, b) : k0 * (k0 - 1) / k1;
}

// A union whose seam is rounded over k millimetres.
double SmoothUnion(double a, double b, double k) {
  const double h = std::max(k - std::abs(a - b), 0.0) / k;
  return std::min(a, b) - 0.25 * k * h * h;
}

// The body's cross-section at a height as a share of its widest one.
double Narrowing(double z) {
  const double bend = (z - 25) / 100;
  return 1 - 0.07 * bend * bend / (1 + 0.3 * bend * bend);
}

void Blend(double coverage, double value, double& hu) { hu += coverage * (value - hu); }

}  // namespace

double UniformRandom::operator()(double low, double high) {
  const double unit = ToUnit(Mix(state_));
  state_ += kStep;
  return low + (high - low) * unit;
}

double NormalAt(uint64_t seed, uint64_t index) {
  const uint64_t bits = Mix(Mix(seed) ^ index);
  const double u = 1 - ToUnit(bits), v = ToUnit(Mix(bits));
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

Anatomy::Anatomy(uint32_t seed, double edge_mm, double texture_mm)
    : edge_(edge_mm), texture_cell_{std::max(11.0, texture_mm), std::max(27.0, texture_mm)} {
  for (int table = 0; table < 2; ++table) {
    UniformRandom random(Mix(seed) + table);
    noise_[table].resize(kNoiseSize * kNoiseSize * kNoiseSize);
    for (float& v : noise_[table]) v = static_cast<float>(random(-1, 1));
  }
  GrowVessels(seed);
}

void Anatomy::GrowVessels(uint32_t seed) {
  UniformRandom random(Mix(seed) + 2);
  // The portal vein enters at the hilum from below; the hepatic veins gather towards the back of the dome.
  Branch({-22, 12, -12}, {-0.75, -0.25, 0.45}, 30, 6.5, 4, random);
  Branch({-22, 12, -12}, {0.55, -0.75, 0.45}, 30, 5.5, 3, random);
  Branch({-25, 22, 58}, {-0.7, -0.45, -0.45}, 36, 6, 4, random);
  Branch({-25, 22, 58}, {0.1, -0.85, -0.4}, 34, 5.5, 3, random);
}

void Anatomy::Branch(Vec3d from, Vec3d direction, double length, double radius, int depth, UniformRandom& random) {
  const Vec3d to = from + (length / Length(direction)) * direction;
  vessels_.push_back({from, to, radius});
  if (depth == 0) return;
  const Vec3d aside{random(-0.8, 0.8), random(-0.8, 0.8), random(-0.8, 0.8)};
  Branch(to, direction + aside, 0.8 * length, 0.75 * radius, depth - 1, random);
  Branch(to, direction - aside, 0.8 * length, 0.7 * radius, depth - 1, random);
}

// 1 well inside, 0 well outside, a smooth step over 2 * edge in between.
double Anatomy::Coverage(double distance) const {
  const double t = std::clamp(0.5 - 0.5 * distance / edge_, 0.0, 1.0);
  return t * t * (3 - 2 * t);
}

// Value noise in [-1, 1] on a lattice of random numbers, joined with Perlin's quintic (2002), so twice differentiable.
double Anatomy::Noise(Vec3d p, int table) const {
  int base[3];
  double weight[3];
  for (int a = 0; a < 3; ++a) {
    const double cell = p[a] / texture_cell_[table], floor = std::floor(cell), t = cell - floor;
    base[a] = static_cast<int>(floor);
    weight[a] = t * t * t * (t * (6 * t - 15) + 10);
  }
  const auto value = [&](int corner) {
    const int x = (base[0] + (corner & 1)) & (kNoiseSize - 1), y = (base[1] + (corner >> 1 & 1)) & (kNoiseSize - 1),
              z = (base[2] + (corner >> 2)) & (kNoiseSize - 1);
    return static_cast<double>(noise_[table][(z * kNoiseSize + y) * kNoiseSize + x]);
  };
  const auto along_x = [&](int corner) { return value(corner) + weight[0] * (value(corner + 1) - value(corner)); };
  const auto along_y = [&](int corner) {
    return along_x(corner) + weight[1] * (along_x(corner + 2) - along_x(corner));
  };
  return along_y(0) + weight[2] * (along_y(4) - along_y(0));
}

// Two sizes of grain, the lattices turned so that they do not lie along the voxels.
double Anatomy::Texture(Vec3d p) const {
  const Vec3d a{0.8 * p.x - 0.6 * p.y, 0.48 * p.x + 0.64 * p.y - 0.6 * p.z, 0.36 * p.x + 0.48 * p.y + 0.8 * p.z};
  const Vec3d b{0.8 * p.x + 0.6 * p.z, p.y, -0.6 * p.x + 0.8 * p.z};
  return 0.6 * Noise(a, 0) + 0.7 * Noise(b, 1);
}

double Anatomy::BodyDistance(Vec3d p) const {
  const double scale = Narrowing(p.z);
  return EllipseDistance(p.x, p.y - kBodyY, kBodyA * scale, kBodyB * scale);
}

double Anatomy::SlidingDistance(Vec3d p) const {
  const double scale = Narrowing(p.z), x = p.x / scale, y = (p.y - kBodyY) / scale;
  const double wall = EllipseDistance(x, y, kBodyA, kBodyB) + kWallDepth;
  return std::max(wall, -EllipseDistance(x, y - kSpineY, kSpineA, kSpineB));
}

Vec3d Anatomy::Slide(Vec3d p, double slip_mm) const {
  const double before = Narrowing(p.z), x = p.x / before, y = (p.y - kBodyY) / before;
  const double height = (p.z - 20) / 90;
  p.z += slip_mm * std::exp(-height * height) * (0.75 - 0.25 * std::tanh(y / 40));
  const double after = Narrowing(p.z);
  return {after * x, kBodyY + after * y, p.z};
}

double Anatomy::SlidingHounsfield(Vec3d p, double slip_mm) const {
  double hu = Wall(p);
  const double organs = Coverage(SlidingDistance(p));
  if (organs > 0) Blend(organs, Organs(Slide(p, slip_mm)), hu);
  return hu;
}

double Anatomy::LiverDistance(Vec3d p) const {
  const double right = EllipsoidDistance(p - Vec3d{-57, 2, 8}, {58, 60, 66});
  const double left = EllipsoidDistance(p - Vec3d{8, -34, 22}, {62, 32, 34});
  const double tip = EllipsoidDistance(p - Vec3d{-72, 10, -38}, {36, 40, 44});
  return SmoothUnion(SmoothUnion(right, left, 24), tip, 20);
}

double Anatomy::Hounsfield(Vec3d p) const {
  const double body = BodyDistance(p);
  if (body > edge_) return -1000;
  const double texture = Texture(p);
  double hu = -1000;
  PaintWall(p, body, texture, hu);
  PaintChest(p, texture, hu);
  PaintRibs(p, body, texture, hu);
  PaintOrgans(p, texture, hu);
  PaintLiver(p, texture, hu);
  PaintSpine(p, texture, hu);
  return hu;
}

double Anatomy::Wall(Vec3d p) const {
  const double body = BodyDistance(p), texture = Texture(p);
  double hu = -1000;
  if (body > edge_) return hu;
  PaintWall(p, body, texture, hu);
  PaintRibs(p, body, texture, hu);
  PaintSpine(p, texture, hu);
  return hu;
}

double Anatomy::Organs(Vec3d p) const {
  const double texture = Texture(p);
  double hu = -1000;
  PaintWall(p, BodyDistance(p), texture, hu);
  PaintChest(p, texture, hu);
  PaintOrgans(p, texture, hu);
  PaintLiver(p, texture, hu);
  return hu;
}

void Anatomy::PaintEllipsoid(Vec3d p, Vec3d center, Vec3d radii, double value, double& hu) const {
  const Vec3d q = p - center;
  if (std::abs(q.x) > radii.x + edge_ || std::abs(q.y) > radii.y + edge_ || std::abs(q.z) > radii.z + edge_) return;
  Blend(Coverage(EllipsoidDistance(q, radii)), value, hu);
}

void Anatomy::PaintTube(Vec3d p, const Tube& tube, double value, double& hu) const {
  const Vec3d axis = tube.to - tube.from, q = p - tube.from;
  const double t = std::clamp(Dot(q, axis) / Dot(axis, axis), 0.0, 1.0);
  const Vec3d d = q - t * axis;
  const double reach = tube.radius + edge_, square = Dot(d, d);
  if (square < reach * reach) Blend(Coverage(std::sqrt(square) - tube.radius), value, hu);
}

// Skin, fat and muscle, and the fat between the organs.
void Anatomy::PaintWall(Vec3d p, double body, double texture, double& hu) const {
  const double fat_mm = 13 + 5 * std::tanh((p.y - 20) / 40);
  Blend(Coverage(body), 40, hu);
  Blend(Coverage(body + 3), -105 + 12 * texture, hu);
  Blend(Coverage(body + 3 + fat_mm), 58 + 18 * texture, hu);
  Blend(Coverage(body + 15 + fat_mm), -75 + 55 * texture, hu);
}

// Lungs and heart.
void Anatomy::PaintChest(Vec3d p, double texture, double& hu) const {
  PaintEllipsoid(p, {-60, 14, 132}, {56, 70, 74}, -830 + 40 * texture, hu);
  PaintEllipsoid(p, {62, 14, 136}, {52, 68, 76}, -830 + 40 * texture, hu);
  PaintEllipsoid(p, {18, -22, 118}, {50, 40, 44}, 150 + 15 * texture, hu);
}

void Anatomy::PaintRibs(Vec3d p, double body, double texture, double& hu) const {
  constexpr double kDepth = 24, kPitch = 29;
  const double radial = body + kDepth;
  if (std::abs(radial) > 5 + edge_ || p.z < -30) return;
  const double tilt = 24 * (p.y - kBodyY) / kBodyB;
  const double nearest = std::max(0.0, std::round((p.z - tilt) / kPitch));
  const double rib = std::hypot(radial, 0.65 * (p.z - tilt - kPitch * nearest)) - 4;
  const double sternal_gap = Coverage(30 - std::abs(p.x) - (p.y > 0 ? 1e3 : 0));
  Blend(Coverage(rib) * sternal_gap, 420 + 90 * texture, hu);
}

void Anatomy::PaintOrgans(Vec3d p, double texture, double& hu) const {
  PaintEllipsoid(p, {86, 22, 38}, {27, 42, 40}, 125 + 14 * texture, hu);  // spleen
  for (double side : {-1.0, 1.0}) {                                       // kidneys: cortex, medulla, pelvis
    const Vec3d center{side * 62, 50, -48 + 10 * side};
    PaintEllipsoid(p, center, {27, 25, 46}, 185 + 15 * texture, hu);
    PaintEllipsoid(p, center - Vec3d{side * 4, 0, 0}, {16, 15, 32}, 130 + 15 * texture, hu);
    PaintEllipsoid(p, center - Vec3d{side * 14, 2, 0}, {12, 9, 16}, -60 + 20 * texture, hu);
  }
  PaintEllipsoid(p, {52, -24, 10}, {40, 34, 38}, 35 + 20 * texture, hu);  // stomach and its gas
  PaintEllipsoid(p, {56, -38, 12}, {27, 17, 24}, -960, hu);
  PaintEllipsoid(p, {8, 6, -22}, {48, 13, 15}, 95 + 18 * texture, hu);  // pancreas
  const Tube colon[] = {{{-82, -18, -78}, {-30, -50, -86}, 19},
                        {{-30, -50, -86}, {40, -50, -80}, 18},
                        {{40, -50, -80}, {88, 0, -60}, 18}};
  for (const Tube& t : colon) PaintTube(p, t, 40 + 20 * texture, hu);
  for (const Tube& t : colon) PaintTube(p, {t.from, t.to, t.radius - 8}, -940, hu);
  PaintTube(p, {{12, 34, -400}, {12, 34, 400}, 11}, 215, hu);    // aorta
  PaintTube(p, {{-20, 32, -400}, {-20, 30, 400}, 12}, 160, hu);  // vena cava
}

void Anatomy::PaintLiver(Vec3d p, double texture, double& hu) const {
  const double liver = LiverDistance(p);
  if (liver > edge_) return;
  double inside = 108 + 16 * texture;
  for (const Tube& vessel : vessels_) PaintTube(p, vessel, 190, inside);
  const struct {
    Vec3d center;
    double radius;
  } tumours[] = {{{-78, -22, 22}, 15}, {{-46, 30, -8}, 11}, {{18, -38, 26}, 9}, {{-84, 18, -30}, 8}};
  for (const auto& tumour : tumours) {
    const double r = tumour.radius;
    PaintEllipsoid(p, tumour.center, {r, r, r}, 140, inside);
    PaintEllipsoid(p, tumour.center, {0.8 * r, 0.8 * r, 0.8 * r}, 48, inside);
  }
  PaintEllipsoid(p, {-30, -38, -38}, {15, 17, 24}, 12, inside);  // gall bladder, where the liver covers it
  Blend(Coverage(liver), inside, hu);
}

// Vertebrae 32 mm apart with discs between them, the canal, and the spinous processes.
void Anatomy::PaintSpine(Vec3d p, double texture, double& hu) const {
  constexpr double kPitch = 32;
  const Vec3d q = p - Vec3d{0, 66, 7};
  if (std::abs(q.x) > 40 || q.y < -40 || q.y > 50) return;
  const double level = Coverage(std::abs(q.z - kPitch * std::round(q.z / kPitch)) - 12);
  const double column = EllipseDistance(q.x, q.y, 22, 18);
  Blend(Coverage(column), 85 + 15 * texture, hu);
  Blend(Coverage(column + 1) * level, 330 + 60 * texture, hu);
  Blend(Coverage(EllipseDistance(q.x, q.y - 22, 34, 6)) * level, 360, hu);
  Blend(Coverage(EllipseDistance(q.x, q.y - 30, 5, 12)) * level, 400, hu);
  Blend(Coverage(EllipseDistance(q.x, q.y - 21, 9, 8)), 30, hu);
}

}  // namespace intrawarp::phantom
