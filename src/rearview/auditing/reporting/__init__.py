"""What an audit reports: the values, the rule of the verdict, and the report as text, JSON and a page.

>>> from rearview.auditing.reporting.report import Verdict
>>> [verdict.value for verdict in Verdict]
['PROVEN', 'HELD', 'LEAKS', 'INCONCLUSIVE']
"""
