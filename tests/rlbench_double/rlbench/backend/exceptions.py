"""What goes wrong in a scene."""


class _TaskError(Exception):
    def __init__(self, message: str, task: object) -> None:
        super().__init__(f"Error in task {task.get_name()}. {message}")


class BoundaryError(Exception):
    """There is no room for the task."""


class WaypointError(_TaskError):
    """The arm cannot get to a waypoint."""


class NoWaypointsError(_TaskError):
    """There is no way to show how the task is done."""


class DemoError(_TaskError):
    """A demonstration did not work out."""


class InvalidActionError(Exception):
    """The action cannot be carried out."""


class TaskEnvironmentError(Exception):
    """The task cannot be set up."""
