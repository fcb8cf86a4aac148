"""Whether engines are well, by proof: four verdicts, each from named evidence.

    probes -> results --+
    gateway's report  --+-> signals -> started, ready, live, degraded -> actor, issues, `ps`
    kernel (`/proc`)  --+

Looking and judging are apart: probes write into a cache (`results`), rules read it. Rules are pure, one a file.
"""
