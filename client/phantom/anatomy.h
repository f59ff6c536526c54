// SPDX-License-Identifier: Apache-2.0
// The phantom's anatomy: an upper abdomen in venous-phase CT as a function of position.
//
// It is drawn in its own millimetres, made for a field of view of 320 x 320 x 240 mm around 0: x to the left, y to the
// back, z to the head. Organs are ellipsoids and tubes, painted over one another. Every edge is a smooth step over
// 2 * edge_mm and every texture has cells of at least `texture_mm`, so that with edge_mm = 1.5 voxels and texture_mm =
// 5 voxels, samples at voxel centres hold the function with hardly any aliasing, and no supersampling is needed.
// Immutable, so thread-safe.
#ifndef INTRAWARP_CLIENT_PHANTOM_ANATOMY_H_
#define INTRAWARP_CLIENT_PHANTOM_ANATOMY_H_

#include <cstdint>
#include <vector>

#include "engine/geometry/vec.h"

namespace intrawarp::phantom {

class Anatomy {
 public:
  Anatomy(uint32_t seed, double edge_mm, double texture_mm);

  // Hounsfield units, -1000 in the air around the body.
  double Hounsfield(Vec3d p) const;
  // Millimetres to the skin, and to the surface of the liver; negative inside.
  double BodyDistance(Vec3d p) const;
  double LiverDistance(Vec3d p) const;

  // Breathing. The surface between the wall of the trunk (with ribs and spine, which stay) and the organs, which slide
  // along it to the head: a tube that follows the narrowing of the body, and that Slide maps to itself.
  // Millimetres to the surface, to first order; negative on the side of the organs.
  double SlidingDistance(Vec3d p) const;
  // Moves a point on the side of the organs by up to `slip_mm` to the head; less at the back, and fading to the head
  // and to the feet. It folds from about 100 mm on.
  Vec3d Slide(Vec3d p, double slip_mm) const;
  // The wall at p, and the organs at Slide(p).
  double SlidingHounsfield(Vec3d p, double slip_mm) const;

 private:
  struct Tube {
    Vec3d from, to;
    double radius;
  };
  void GrowVessels(uint32_t seed);
  void Branch(Vec3d from, Vec3d direction, double length, double radius, int depth, class UniformRandom& random);

  double Wall(Vec3d p) const;
  double Organs(Vec3d p) const;
  double Coverage(double distance) const;
  double Texture(Vec3d p) const;
  double Noise(Vec3d p, int table) const;
  void PaintWall(Vec3d p, double body_distance, double texture, double& hu) const;
  void PaintChest(Vec3d p, double texture, double& hu) const;
  void PaintRibs(Vec3d p, double body_distance, double texture, double& hu) const;
  void PaintOrgans(Vec3d p, double texture, double& hu) const;
  void PaintLiver(Vec3d p, double texture, double& hu) const;
  void PaintSpine(Vec3d p, double texture, double& hu) const;
  void PaintEllipsoid(Vec3d p, Vec3d center, Vec3d radii, double value, double& hu) const;
  void PaintTube(Vec3d p, const Tube& tube, double value, double& hu) const;

  double edge_;
  double texture_cell_[2];
  std::vector<float> noise_[2];
  std::vector<Tube> vessels_;
};

// Uniform numbers that are the same with every standard library.
class UniformRandom {
 public:
  explicit UniformRandom(uint64_t seed) : state_(seed) {}
  // In [low, high).
  double operator()(double low, double high);

 private:
  uint64_t state_;
};

// A standard normal number for each (seed, index), whatever the order of the calls.
double NormalAt(uint64_t seed, uint64_t index);

}  // namespace intrawarp::phantom

#endif  // INTRAWARP_CLIENT_PHANTOM_ANATOMY_H_
