# SPDX-License-Identifier: Apache-2.0
"""Peers that are demons: ITK's diffeomorphic demons and plastimatch's, with the parameters that our own is given."""

import dataclasses
import os
import pathlib

import mappings
import methods
import nonrigid_peers

ITK_PROGRAM = 'build/peers/itk_demons'


@dataclasses.dataclass
class Parameters:
    """Of `intrawarp register --method=log-demons`; sigmas and the step in voxels of the level."""

    levels: int = 4
    iterations: int = 100
    fluid_sigma: float = 2
    diffusion_sigma: float = 0.7
    max_step: float = 2

    @classmethod
    def of_options(cls, options):
        """From --name=value words; our own needs --levels among them to have the same."""
        given = dict(word.lstrip('-').split('=', 1) for word in options if '=' in word)
        fields = {field.name: field.type for field in dataclasses.fields(cls)}
        return cls(**{name: fields[name](value) for name, value in given.items() if name in fields})


def available(parameters):
    """The peers of this machine."""
    peers = [PlastimatchLogDomain(parameters)]
    program = pathlib.Path(os.environ.get('ITK_DEMONS', ITK_PROGRAM))
    return [ItkDiffeomorphic(parameters, program), *peers] if program.exists() else peers


class ItkDiffeomorphic(methods.Peer):
    """tests/accuracy/peers/itk_demons.cc: every iteration that it is given, on every level."""

    name = 'ITK diffeomorphic demons'

    def __init__(self, parameters, program):
        self._parameters = parameters
        self._program = program

    def register(self, pair, work):
        if pair.is_2d:
            raise methods.Failed('3-D images only')
        p, field = self._parameters, work / 'field.mhd'
        seconds, _ = methods.execute(
            [self._program.resolve(), pair.fixed, pair.moving, field, p.levels, p.iterations, p.fluid_sigma,
             p.diffusion_sigma, p.max_step], work / 'itk.log')
        return methods.Outcome(seconds, nonrigid_peers.read_metaimage_field(field))


PLASTIMATCH_STAGE = '''
[STAGE]
xform=vf
optim=demons
optim_subtype=log_domain
impl=itk
max_its={iterations}
demons_gradient_type=symmetric
demons_smooth_update_field=1
demons_std_update_field={fluid}
demons_smooth_deformation_field=1
demons_std_deformation_field={diffusion}
demons_step_length={step}
res={res} {res} {res}
'''


class PlastimatchLogDomain(methods.Peer):
    """plastimatch's log-domain demons (impl=itk), a stage a level, each half as fine along every axis as the next."""

    name = 'plastimatch log-domain demons'

    def __init__(self, parameters):
        self._parameters = parameters

    def register(self, pair, work):
        if pair.is_2d:
            raise methods.Failed('3-D images only')
        p, text, field = self._parameters, work / 'plastimatch.txt', work / 'field.nii.gz'
        stages = ''.join(
            PLASTIMATCH_STAGE.format(iterations=p.iterations, fluid=p.fluid_sigma, diffusion=p.diffusion_sigma,
                                     step=p.max_step, res=2 ** level) for level in reversed(range(p.levels)))
        text.write_text(f'[GLOBAL]\nfixed={pair.fixed}\nmoving={pair.moving}\nvf_out={field}\n{stages}')
        seconds, _ = methods.execute(['plastimatch', 'register', text], work / 'plastimatch.log')
        return methods.Outcome(seconds, mappings.Displacement.read(field))
