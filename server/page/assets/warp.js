// SPDX-License-Identifier: Apache-2.0
// The planes by WebGL2: each pixel is a point of the patient's space, where the shader reads the fixed image, adds the
// displacement to the point, and reads the moving image there. All reads interpolate in the shader, in float32: the
// weights of texture units have 8 bits.
import {colourTexels} from './colours.js';
import {kErrorRange, kJacobianRange} from './modes.js';

const kVertex = `#version 300 es
in vec2 corner;
out vec2 at;
void main() { at = corner * 0.5 + 0.5; gl_Position = vec4(corner, 0.0, 1.0); }`;

// Image is isampler3D or usampler3D, by the type of the voxels.
const fragment = (fixedSampler, movingSampler) => `#version 300 es
precision highp float;
precision highp int;
precision highp isampler3D;
precision highp usampler3D;
precision highp sampler3D;
precision highp sampler2D;
uniform ${fixedSampler} fixedImage;
uniform ${movingSampler} movingImage;
uniform isampler3D field;
uniform sampler3D error;
uniform sampler2D colours;
uniform mat4 toFixed, toMoving, toField, toError;
uniform vec3 origin, right, down;
uniform vec2 fixedWindow, movingWindow;  // what is subtracted, what it is multiplied with
uniform float fieldScale, node, pixel;
uniform int mode, hasField, hasError, raw;
in vec2 at;
out vec4 colour;

const float kNone = -1e30;

bool inside(vec3 i, ivec3 n) { return all(greaterThan(i, vec3(-0.5))) && all(lessThan(i, vec3(n) - 0.5)); }
#define CORNERS(FETCH, TYPE, n) \\
  vec3 c = clamp(i, vec3(0.0), vec3(n - 1)); \\
  ivec3 a = min(ivec3(c), max(n - 2, 0)); \\
  ivec3 b = min(a + 1, n - 1); \\
  vec3 t = c - vec3(a); \\
  return mix(mix(mix(FETCH(a.x, a.y, a.z), FETCH(b.x, a.y, a.z), t.x), \\
                 mix(FETCH(a.x, b.y, a.z), FETCH(b.x, b.y, a.z), t.x), t.y), \\
             mix(mix(FETCH(a.x, a.y, b.z), FETCH(b.x, a.y, b.z), t.x), \\
                 mix(FETCH(a.x, b.y, b.z), FETCH(b.x, b.y, b.z), t.x), t.y), t.z);
#define FIXED(x, y, z) float(texelFetch(fixedImage, ivec3(x, y, z), 0).r)
#define MOVING(x, y, z) float(texelFetch(movingImage, ivec3(x, y, z), 0).r)
#define NODE(x, y, z) vec3(texelFetch(field, ivec3(x, y, z), 0).rgb)

float fixedAt(vec3 p) {
  vec3 i = (toFixed * vec4(p, 1.0)).xyz;
  ivec3 n = textureSize(fixedImage, 0);
  if (!inside(i, n)) return kNone;
  CORNERS(FIXED, float, n)
}
vec3 displacement(vec3 p) {
  vec3 i = (toField * vec4(p, 1.0)).xyz;
  ivec3 n = textureSize(field, 0);
  CORNERS(fieldScale * NODE, vec3, n)
}
vec3 mapped(vec3 p) { return hasField == 1 ? p + displacement(p) : p; }
float movingAt(vec3 q) {
  vec3 i = (toMoving * vec4(q, 1.0)).xyz;
  ivec3 n = textureSize(movingImage, 0);
  if (!inside(i, n)) return kNone;
  CORNERS(MOVING, float, n)
}
float jacobian(vec3 p) {
  float h = 0.5 * node;
  mat3 j;
  for (int axis = 0; axis < 3; ++axis) {
    vec3 step = vec3(0.0);
    step[axis] = h;
    j[axis] = (mapped(p + step) - mapped(p - step)) / node;
  }
  return determinant(j);
}
float errorAt(vec3 p) {
  if (hasError == 0) return kNone;
  ivec3 i = ivec3(floor((toError * vec4(p, 1.0)).xyz + 0.5));
  if (any(lessThan(i, ivec3(0))) || any(greaterThanEqual(i, textureSize(error, 0)))) return kNone;
  return texelFetch(error, i, 0).r;
}

float shade(float v, vec2 window) { return v == kNone ? 0.0 : clamp((v - window.x) * window.y, 0.0, 1.0); }
vec3 map(int row, float t) { return texture(colours, vec2(clamp(t, 0.0, 1.0) * 255.0 / 256.0 + 0.5 / 256.0, (float(row) + 0.5) / 3.0)).rgb; }
float hatch() { return step(0.5, fract((gl_FragCoord.x + gl_FragCoord.y) / 14.0)); }
vec3 over(float grey, vec3 with_) { return with_ * (0.25 + 0.75 * grey); }

vec3 gridLines(vec3 q, vec3 n, float grey) {
  // Lines where a coordinate of q in the plane is a whole number of cells.
  vec3 cell = q / 10.0;
  vec3 width = fwidth(cell) * 0.8;
  vec3 from = abs(fract(cell - 0.5) - 0.5);
  vec3 line = (1.0 - smoothstep(width * 0.6, width * 1.6, from)) * (1.0 - n);
  return mix(vec3(grey * 0.55), vec3(0.55, 0.85, 1.0), max(max(line.x, line.y), line.z));
}

void main() {
  vec3 p = origin + at.x * right + (1.0 - at.y) * down;
  float f = fixedAt(p);
  if (f == kNone) { colour = vec4(0.0, 0.0, 0.0, 1.0); return; }
  vec3 q = mapped(p);
  float m = movingAt(q);
  if (raw == 1) {
    // For tests: the value in 16 bits, red above green.
    float v = floor((mode == 0 ? f : m) + 32768.5);
    colour = vec4(floor(v / 256.0) / 255.0, mod(v, 256.0) / 255.0, m == kNone ? 0.0 : 1.0, 1.0);
    return;
  }
  float fs = shade(f, fixedWindow);
  float ms = shade(m, movingWindow);
  vec3 normal = abs(normalize(cross(right, down)));
  if (m == kNone && mode != 0) { colour = vec4(vec3(0.10 * hatch()), 1.0); return; }
  vec3 c = vec3(fs);
  if (mode == 1) {
    c = vec3(ms);
  } else if (mode == 2) {
    vec3 cell = floor(p / 20.0) * (1.0 - step(0.5, normal));
    bool odd = mod(cell.x + cell.y + cell.z, 2.0) > 0.5;
    c = odd ? vec3(ms) * vec3(1.0, 0.93, 0.80) : vec3(fs);
  } else if (mode == 3) {
    c = map(2, 0.5 + 0.5 * (fs - ms));
  } else if (mode == 4) {
    c = gridLines(q, step(0.5, normal), ms);
  } else if (mode == 5) {
    float j = jacobian(p);
    c = over(fs, map(0, (j - ${kJacobianRange[0].toFixed(1)}) / ${(kJacobianRange[1] - kJacobianRange[0]).toFixed(1)}));
    if (j <= 0.0) c = vec3(hatch());
  } else if (mode == 6) {
    float e = errorAt(p);
    c = e == e && e >= 0.0 ? over(fs, map(1, e / ${(kErrorRange[1] - kErrorRange[0]).toFixed(1)})) : vec3(fs * 0.35 + 0.12 * hatch());
  }
  colour = vec4(c, 1.0);
}`;

const kNoField = {data: new Int16Array(3), grid: {size: [1, 1, 1]}};
const kNoError = {data: new Float32Array(1), grid: {size: [1, 1, 1]}};
const kSlow = 60;  // ms
const identity = [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
// 3 x 4, rows, to what a uniform takes, columns.
const columns = (m) => [m[0], m[4], m[8], 0, m[1], m[5], m[9], 0, m[2], m[6], m[10], 0, m[3], m[7], m[11], 1];

function compile(gl, type, source) {
  const shader = gl.createShader(type);
  gl.shaderSource(shader, source);
  gl.compileShader(shader);
  if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
  return shader;
}

export class Warp {
  // Null where the browser has no WebGL2.
  static create(canvas) {
    const options = {alpha: false, antialias: false, depth: false, preserveDrawingBuffer: true};
    const gl = canvas.getContext('webgl2', options);
    return gl ? new Warp(gl) : null;
  }

  constructor(gl) {
    this.gl = gl;
    this.largest = gl.getParameter(gl.MAX_3D_TEXTURE_SIZE);
    this.programs = new Map();
    this.textures = {};
    this.scale = 1;
    this.slow = 0;
    gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1);
    const corners = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, corners);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array([-1, -1, 1, -1, -1, 1, 1, 1]), gl.STATIC_DRAW);
    const {texels, rows} = colourTexels();
    this.colours = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, this.colours);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, 256, rows, 0, gl.RGBA, gl.UNSIGNED_BYTE, texels);
    for (const [name, value] of [[gl.TEXTURE_MIN_FILTER, gl.NEAREST], [gl.TEXTURE_MAG_FILTER, gl.NEAREST],
      [gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE], [gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE]]) {
      gl.texParameteri(gl.TEXTURE_2D, name, value);
    }
  }

  // Whether the last picture is on the screen. Pictures that take longer than kSlow are drawn at half the resolution.
  isDone() {
    const {gl} = this;
    if (!this.fence) return true;
    if (gl.clientWaitSync(this.fence, 0, 0) === gl.TIMEOUT_EXPIRED) return false;
    gl.deleteSync(this.fence);
    this.fence = null;
    this.slow = performance.now() - this.began > kSlow ? this.slow + 1 : 0;
    if (this.slow > 2 && this.scale === 1) this.scale = 0.5;
    return true;
  }

  fits = (grid) => grid.size.every((n) => n <= this.largest);

  // Puts voxels into a texture, once, and makes the texture anew only for another size or type.
  upload(name, data, size) {
    const {gl} = this;
    if (this.textures[name]?.data === data) return;
    const [internal, format, type] = {
      Int16Array: name === 'field' ? [gl.RGB16I, gl.RGB_INTEGER, gl.SHORT] : [gl.R16I, gl.RED_INTEGER, gl.SHORT],
      Uint8Array: [gl.R8UI, gl.RED_INTEGER, gl.UNSIGNED_BYTE],
      Float32Array: [gl.R32F, gl.RED, gl.FLOAT],
    }[data.constructor.name];
    const key = `${internal} ${size}`;
    let texture = this.textures[name];
    if (!texture || texture.key !== key) {
      if (texture) gl.deleteTexture(texture.id);
      texture = this.textures[name] = {id: gl.createTexture(), key};
      gl.bindTexture(gl.TEXTURE_3D, texture.id);
      gl.texStorage3D(gl.TEXTURE_3D, 1, internal, ...size);
      gl.texParameteri(gl.TEXTURE_3D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
      gl.texParameteri(gl.TEXTURE_3D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    }
    texture.data = data;
    gl.bindTexture(gl.TEXTURE_3D, texture.id);
    gl.texSubImage3D(gl.TEXTURE_3D, 0, 0, 0, 0, ...size, format, type, data);
  }

  program(fixed, moving) {
    const samplerOf = (image) => image.data instanceof Uint8Array ? 'usampler3D' : 'isampler3D';
    const key = `${samplerOf(fixed)} ${samplerOf(moving)}`;
    if (!this.programs.has(key)) {
      const {gl} = this;
      const id = gl.createProgram();
      gl.attachShader(id, compile(gl, gl.VERTEX_SHADER, kVertex));
      gl.attachShader(id, compile(gl, gl.FRAGMENT_SHADER, fragment(samplerOf(fixed), samplerOf(moving))));
      gl.linkProgram(id);
      if (!gl.getProgramParameter(id, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(id));
      const at = gl.getAttribLocation(id, 'corner');
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, 2, gl.FLOAT, false, 0, 0);
      this.programs.set(key, {id, place: new Proxy({}, {get: (known, name) => known[name] ??= gl.getUniformLocation(id, name)})});
    }
    return this.programs.get(key);
  }

  clear() {
    const {gl} = this;
    gl.disable(gl.SCISSOR_TEST);
    gl.clearColor(0, 0, 0, 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
  }

  // scene: {fixed, moving, field, error, mode}; images and maps as stream and grid have them, field and error may be
  // null. planes: [{x, y, width, height (pixels from the top), origin, right, down (mm)}]
  draw(scene, planes, raw = false) {
    const {gl} = this;
    this.clear();
    this.began = performance.now();
    const {fixed, moving, field, error} = scene;
    for (const [name, image] of Object.entries({fixed, moving, field: field ?? kNoField, error: error ?? kNoError})) {
      this.upload(name, image.data, image.grid.size);
    }
    const {id, place} = this.program(fixed, moving);
    gl.useProgram(id);
    const bind = (unit, target, texture, name) => {
      gl.activeTexture(gl.TEXTURE0 + unit);
      gl.bindTexture(target, texture);
      gl.uniform1i(place[name], unit);
    };
    bind(0, gl.TEXTURE_3D, this.textures.fixed.id, 'fixedImage');
    bind(1, gl.TEXTURE_3D, this.textures.moving.id, 'movingImage');
    bind(2, gl.TEXTURE_3D, this.textures.field.id, 'field');
    bind(3, gl.TEXTURE_3D, this.textures.error.id, 'error');
    bind(4, gl.TEXTURE_2D, this.colours, 'colours');
    gl.activeTexture(gl.TEXTURE5);  // uploads bind there
    const matrix = (name, grid) => gl.uniformMatrix4fv(place[name], false, grid ? columns(grid.toIndex) : identity);
    matrix('toFixed', fixed.grid);
    matrix('toMoving', moving.grid);
    matrix('toField', field?.grid);
    matrix('toError', error?.grid);
    for (const [name, image] of [['fixedWindow', fixed], ['movingWindow', moving]]) {
      const [low, high] = image.window.map((v) => (v - image.intercept) / image.slope);
      gl.uniform2f(place[name], low, 1 / Math.max(high - low, 1e-6));
    }
    gl.uniform1f(place.fieldScale, field?.scale ?? 0);
    gl.uniform1f(place.node, field?.node ?? 1);
    gl.uniform1i(place.mode, scene.mode);
    gl.uniform1i(place.hasField, field ? 1 : 0);
    gl.uniform1i(place.hasError, error ? 1 : 0);
    gl.uniform1i(place.raw, raw ? 1 : 0);
    for (const plane of planes) {
      const [x, y, width, height] = [plane.x, plane.y, plane.width, plane.height].map((v) => Math.round(v * this.scale));
      gl.viewport(x, gl.drawingBufferHeight - y - height, width, height);
      gl.uniform3fv(place.origin, plane.origin);
      gl.uniform3fv(place.right, plane.right);
      gl.uniform3fv(place.down, plane.down);
      gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
    }
    this.fence = gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    gl.flush();
  }
}
