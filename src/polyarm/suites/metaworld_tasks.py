"""Meta-World's tasks, the sets they form and what a language-conditioned policy is told.

Data only, so that listing tasks imports no simulator. The sets are those of Meta-World 3.1.1;
difficulty groups and instructions are LeRobot's, word for word, because its policies were trained
on these very sentences.
"""

from __future__ import annotations

INSTRUCTIONS: dict[str, str] = {
    "assembly-v3": "Pick up a nut and place it onto a peg",
    "basketball-v3": "Dunk the basketball into the basket",
    "bin-picking-v3": "Grasp the puck from one bin and place it into another bin",
    "box-close-v3": "Grasp the cover and close the box with it",
    "button-press-topdown-v3": "Press a button from the top",
    "button-press-topdown-wall-v3": "Bypass a wall and press a button from the top",
    "button-press-v3": "Press a button",
    "button-press-wall-v3": "Bypass a wall and press a button",
    "coffee-button-v3": "Push a button on the coffee machine",
    "coffee-pull-v3": "Pull a mug from a coffee machine",
    "coffee-push-v3": "Push a mug under a coffee machine",
    "dial-turn-v3": "Rotate a dial 180 degrees",
    "disassemble-v3": "Pick a nut out of a peg",
    "door-close-v3": "Close a door with a revolving joint",
    "door-lock-v3": "Lock the door by rotating the lock clockwise",
    "door-open-v3": "Open a door with a revolving joint",
    "door-unlock-v3": "Unlock the door by rotating the lock counter-clockwise",
    "drawer-close-v3": "Push and close a drawer",
    "drawer-open-v3": "Open a drawer",
    "faucet-close-v3": "Rotate the faucet clockwise",
    "faucet-open-v3": "Rotate the faucet counter-clockwise",
    "hammer-v3": "Hammer a screw on the wall",
    "hand-insert-v3": "Insert the gripper into a hole",
    "handle-press-side-v3": "Press a handle down sideways",
    "handle-press-v3": "Press a handle down",
    "handle-pull-side-v3": "Pull a handle up sideways",
    "handle-pull-v3": "Pull a handle up",
    "lever-pull-v3": "Pull a lever down 90 degrees",
    "peg-insert-side-v3": "Insert a peg sideways",
    "peg-unplug-side-v3": "Unplug a peg sideways",
    "pick-out-of-hole-v3": "Pick up a puck from a hole",
    "pick-place-v3": "Pick and place a puck to a goal",
    "pick-place-wall-v3": "Pick a puck, bypass a wall and place the puck",
    "plate-slide-back-side-v3": "Get a plate from the cabinet sideways",
    "plate-slide-back-v3": "Get a plate from the cabinet",
    "plate-slide-side-v3": "Slide a plate into a cabinet sideways",
    "plate-slide-v3": "Slide a plate into a cabinet",
    "push-back-v3": "Push the puck to a goal",
    "push-v3": "Push the puck to a goal",
    "push-wall-v3": "Bypass a wall and push a puck to a goal",
    "reach-v3": "Reach a goal position",
    "reach-wall-v3": "Bypass a wall and reach a goal",
    "shelf-place-v3": "Pick and place a puck onto a shelf",
    "soccer-v3": "Kick a soccer into the goal",
    "stick-pull-v3": "Grasp a stick and pull a box with the stick",
    "stick-push-v3": "Grasp a stick and push a box using the stick",
    "sweep-into-v3": "Sweep a puck into a hole",
    "sweep-v3": "Sweep a puck off the table",
    "window-close-v3": "Push and close a window",
    "window-open-v3": "Push and open a window",
}


def _v3(names: str) -> tuple[str, ...]:
    return tuple(f"{name}-v3" for name in names.split())


SETS: dict[str, tuple[str, ...]] = {
    "mt10": _v3(
        """
        reach push pick-place door-open drawer-open drawer-close button-press-topdown
        peg-insert-side window-open window-close
        """
    ),
    "mt25": _v3(
        """
        reach push pick-place door-open drawer-open drawer-close button-press-topdown
        peg-insert-side window-open window-close coffee-pull pick-out-of-hole disassemble
        pick-place-wall basketball stick-pull button-press-wall faucet-open door-lock lever-pull
        sweep-into faucet-close coffee-button button-press-topdown-wall dial-turn
        """
    ),
    "mt50": _v3(
        """
        assembly basketball bin-picking box-close button-press-topdown button-press-topdown-wall
        button-press button-press-wall coffee-button coffee-pull coffee-push dial-turn disassemble
        door-close door-lock door-open door-unlock hand-insert drawer-close drawer-open faucet-open
        faucet-close hammer handle-press-side handle-press handle-pull-side handle-pull lever-pull
        pick-place-wall pick-out-of-hole pick-place plate-slide plate-slide-side plate-slide-back
        plate-slide-back-side peg-insert-side peg-unplug-side soccer stick-push stick-pull push
        push-wall push-back reach reach-wall shelf-place sweep-into sweep window-open window-close
        """
    ),
    "ml10-train": _v3(
        """
        reach push pick-place door-open drawer-close button-press-topdown peg-insert-side
        window-open sweep basketball
        """
    ),
    "ml10-test": _v3(
        """
        drawer-open door-close shelf-place sweep-into lever-pull
        """
    ),
    "ml25-train": _v3(
        """
        reach push pick-place door-open drawer-open drawer-close button-press-topdown
        peg-insert-side window-open window-close coffee-pull pick-out-of-hole disassemble
        pick-place-wall basketball stick-pull button-press-wall faucet-open door-lock lever-pull
        sweep-into faucet-close coffee-button button-press-topdown-wall dial-turn
        """
    ),
    "ml25-test": _v3(
        """
        basketball door-close shelf-place sweep button-press
        """
    ),
    "ml45-train": _v3(
        """
        assembly basketball button-press-topdown button-press-topdown-wall button-press
        button-press-wall coffee-button coffee-pull coffee-push dial-turn disassemble door-close
        door-open drawer-close drawer-open faucet-open faucet-close hammer handle-press-side
        handle-press handle-pull-side handle-pull lever-pull pick-place-wall pick-out-of-hole
        push-back pick-place plate-slide plate-slide-side plate-slide-back plate-slide-back-side
        peg-insert-side peg-unplug-side soccer stick-push stick-pull push-wall push reach-wall reach
        shelf-place sweep-into sweep window-open window-close
        """
    ),
    "ml45-test": _v3(
        """
        bin-picking box-close hand-insert door-lock door-unlock
        """
    ),
    "easy": _v3(
        """
        button-press button-press-topdown button-press-topdown-wall button-press-wall coffee-button
        dial-turn door-close door-lock door-open door-unlock drawer-close drawer-open faucet-close
        faucet-open handle-press handle-press-side handle-pull handle-pull-side lever-pull
        plate-slide plate-slide-back plate-slide-back-side plate-slide-side reach reach-wall
        window-close window-open peg-unplug-side
        """
    ),
    "medium": _v3(
        """
        basketball bin-picking box-close coffee-pull coffee-push hammer peg-insert-side push-wall
        soccer sweep sweep-into
        """
    ),
    "hard": _v3(
        """
        assembly hand-insert pick-out-of-hole pick-place push push-back
        """
    ),
    "very_hard": _v3(
        """
        shelf-place disassemble stick-pull stick-push pick-place-wall
        """
    ),
}
