"""What a recovery costs by the paper's formulas: PDUs sorted (U) and broadcast again (R).

A window of L PDUs, one of each of n entities, is sent to d destinations each; every destination
misses a PDU with probability f.  U is what go-back would send again, R what is sent selectively.
"""


def _first_lost(lost: int, n: int, d: int, f: float, *, corrected: bool) -> float:
    """P_l: PDU l is the first that some destination misses.

    As printed it has a factor d/n, which U has again and R, which counts all PDUs, must not have.
    """
    spared = (1.0 - f) ** d
    p = spared**lost * (1.0 - spared)
    return p if corrected else p * d / n


def _touched(lost: int, n: int, d: int, window: int) -> float:
    """T_l: how many PDUs from l on an entity finds behind the failure point.  [S003:eq.1]"""
    r = (n - d) / n
    return d / n * sum(r ** (i - 1) * (window - lost - i + 1) for i in range(1, window - lost + 1))


def sorted_share(n: int, d: int, f: float, *, window: int, corrected: bool) -> float:
    """U/L: share of a window's PDUs behind the failure line.  [S003:eq.2] [S003:eq.3]"""
    total = sum(
        _touched(lost, n, d, window) * _first_lost(lost, n, d, f, corrected=corrected)
        for lost in range(window)
    )
    return total * d / n / window


def repeated_share(n: int, d: int, f: float, *, window: int, corrected: bool) -> float:
    """R/L: share of a window's PDUs that is broadcast again.  [S003:eq.4] [S003:eq.5]

    With the corrected P_l it is 1 - (1-f)^d exactly: what somebody misses.
    """
    missed = 1.0 - (1.0 - f) ** d
    total = sum(
        _first_lost(lost, n, d, f, corrected=corrected) * (1.0 + (window - lost - 1) * missed)
        for lost in range(window)
    )
    return total / window
