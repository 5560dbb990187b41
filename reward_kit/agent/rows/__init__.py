"""The row format of a task: fields, their checks, and the datasets that hold rows."""
